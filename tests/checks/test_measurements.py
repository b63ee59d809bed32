"""Measurements of small tables, with values computed by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from scipy import stats  # type: ignore[import-untyped]

from mill.api.response import Token
from mill.checks.answers import CHOICE, DOCUMENT, Answer
from mill.checks.compare import compared
from mill.checks.forced import ForcedGaps
from mill.checks.gate import BROKEN, KEPT, judge, parse_rules
from mill.checks.measurements import (
    group_measurements,
    measure_answers,
    measure_forced,
)
from mill.checks.pairing import AnswerPair, Pairs, pair
from mill.checks.result import Check, Variant
from mill.metrics.divergence import Gap


def answer(text: str = "", *, id: str = "1", category: str = "c", **known: Any) -> Answer:
    return Answer("t", id, category, "a prompt", None, text, **{"metric": "acc", **known})


def numbered(pairs: Sequence[AnswerPair]) -> list[AnswerPair]:
    """Each as a sample of its own."""
    return [AnswerPair(replace(pair.a, id=str(number)), pair.b) for number, pair in enumerate(pairs)]


def measure(pairs: Sequence[AnswerPair]) -> Variant:
    return measure_answers(Variant("b"), numbered(pairs))


def paired(pairs: Sequence[AnswerPair]) -> Pairs[Answer]:
    return Pairs([(pair.a, pair.b) for pair in numbered(pairs)])


def given(text: str, right: bool, **known: Any) -> Answer:
    return answer(text, extracted=text, comparable=True, value=float(right), **known)


FAILED = answer(comparable=True, error="HTTP 500")
TABLE = [
    AnswerPair(given("4", True), given("4", True)),
    AnswerPair(given("5", True), given("6", False)),
    AnswerPair(given("7", False), given("8", True)),
    AnswerPair(given("9", True), FAILED),
    AnswerPair(given("1", False), given("1", False)),
    AnswerPair(answer("a story"), answer("a story")),
]


def values(pairs: list[AnswerPair]) -> dict[str, tuple[float, int]]:
    return {name: (estimate.value, estimate.n) for name, estimate in measure(pairs).metrics.items()}


def test_a_table_of_six_samples() -> None:
    found = values(TABLE)
    assert found["failure_rate"] == (1 / 6, 6)
    assert found["match_rate"] == (3 / 6, 6)
    assert found["similarity"] == (3 / 6, 6)
    assert found["empty_rate"] == found["cut_rate"] == found["filtered_rate"] == (0.0, 6)
    assert found["flip_rate"] == (3 / 5, 5)
    assert found["acc_baseline"] == (3 / 5, 5)
    assert found["acc"] == (2 / 5, 5)
    value, n = found["acc_drop"]
    assert value == pytest.approx(1 / 5) and n == 5
    assert found["regression_rate"] == (2 / 5, 5)
    assert found["improvement_rate"] == (1 / 5, 5)


def test_counts_and_p_values_of_the_table() -> None:
    found = measure(TABLE)
    assert found.p_values["acc_drop"] == 1.0  # two worse, one better: 2 * (1 + 3) / 8
    flips = {"flips": 3, "regressions": 2, "improvements": 1, "flips_cut_short": 0, "unextracted": 0}
    severities = {"diverged": 2, "severity_identical": 3, "severity_severe": 2, "severity_failed": 1}
    texts = dict.fromkeys(("empty", "both_empty", "baseline_empty", "cut_short", "filtered"), 0)
    expected = {"samples": 6, "failed": 1, "candidate_failed": 1, **flips, **severities, **texts}
    assert found.counts == expected


def test_a_sample_that_fails_on_both_sides_counts_as_changed() -> None:
    found = values([*TABLE, AnswerPair(FAILED, FAILED)])
    assert found["failure_rate"] == (2 / 7, 7)
    assert found["match_rate"] == (3 / 7, 7)
    assert found["flip_rate"] == (4 / 6, 6)


def test_without_gold_there_is_no_accuracy_and_without_extraction_no_flip() -> None:
    always = {"failure_rate", "match_rate", "similarity", "empty_rate", "cut_rate", "filtered_rate"}
    assert set(values([AnswerPair(answer("a"), answer("b"))])) == always


def diverging(index: int, margin: float | None) -> AnswerPair:
    """Texts whose tokens differ from an index on, with this margin between the baseline's two best tokens."""
    top = () if margin is None else ((1, -0.1), (2, -0.1 - margin))
    first = tuple(Token(n, "x", -0.1, top) for n in range(5))
    second = tuple(Token(n if n < index else 99, "x", -0.1) for n in range(5))
    return AnswerPair(answer("xxxxx", tokens=first), answer("x" * index + "y", tokens=second))


def test_divergences_at_near_ties_are_distinguished_from_clear_ones() -> None:
    found = measure([diverging(1, 0.05), diverging(2, 0.5), diverging(3, 2.0), TABLE[0]])
    assert found.counts["diverged"] == 3
    assert (found.counts["near_ties"], found.counts["clear_divergences"]) == (1, 2)
    assert found.metrics["first_divergence"].value == 3.0  # tokens 2, 3 and 4
    assert found.metrics["divergence_margin"].value == pytest.approx(2.55 / 3)
    assert (found.metrics["clear_divergence_rate"].value, found.metrics["clear_divergence_rate"].n) == (2 / 4, 4)


def test_a_margin_that_is_not_known_counts_as_clear() -> None:
    """One baseline answer that ends first must not remove the metric for all the others."""
    found = measure([diverging(1, 0.5), diverging(2, None), diverging(3, 0.05), TABLE[5]])
    assert (found.metrics["clear_divergence_rate"].value, found.metrics["clear_divergence_rate"].n) == (2 / 4, 4)
    assert found.metrics["first_divergence"].n == 3


def test_clear_divergences_of_engines_without_log_probabilities_are_not_measured() -> None:
    assert "clear_divergence_rate" not in measure([diverging(1, None)]).metrics
    assert measure([TABLE[5]]).metrics["clear_divergence_rate"].value == 0.0  # no text diverges


def test_a_margin_that_is_nan_is_no_near_tie() -> None:
    found = measure([diverging(1, math.nan), diverging(2, 0.05)])
    assert found.counts["near_ties"] == 1
    assert found.metrics["clear_divergence_rate"].value == 0.5


def test_scores_of_choices() -> None:
    a, b = answer(" x", scores=(-1.0, -2.0), form=CHOICE), answer(" x", scores=(-1.5, -2.25), form=CHOICE)
    far = AnswerPair(answer(" x", scores=(-1.0,), form=CHOICE), answer(" x", scores=(-4.0,), form=CHOICE))
    found = measure([AnswerPair(a, b), far, AnswerPair(a, FAILED)]).metrics
    assert found["logprob_shift"].value == pytest.approx((0.5 + 0.25 + 3.0) / 3)
    assert found["logprob_shift_max"].value == 3.0
    assert "ppl_ratio" not in found and "match_rate" not in found  # a choice is no text


def test_a_choice_that_became_impossible_is_an_infinite_shift() -> None:
    steady = AnswerPair(answer(scores=(-1.0, -math.inf), form=CHOICE), answer(scores=(-1.0, -math.inf), form=CHOICE))
    found = measure([steady]).metrics
    assert (found["logprob_shift"].value, found["logprob_shift_max"].value) == (0.0, 0.0)
    gone = AnswerPair(answer(scores=(-1.0, -3.0), form=CHOICE), answer(scores=(-1.0, -math.inf), form=CHOICE))
    found = measure([steady, gone]).metrics
    assert (found["logprob_shift"].value, found["logprob_shift_max"].value) == (math.inf, math.inf)


def documents(tokens: tuple[int, int]) -> list[AnswerPair]:
    """Documents of 50 and 100 words, and of 80 and 200 tokens for the baseline, which lose 10 and 30 nats."""
    scored = (((-100.0, -110.0), 50.0, (80, tokens[0])), ((-200.0, -230.0), 100.0, (200, tokens[1])))
    return [
        AnswerPair(
            answer(scores=(a,), units=words, scored_tokens=first, form=DOCUMENT),
            answer(scores=(b,), units=words, scored_tokens=second, form=DOCUMENT),
        )
        for (a, b), words, (first, second) in scored
    ]


@pytest.mark.parametrize(
    ("tokens", "name", "units"), [((80, 200), "ppl_ratio", (80, 200)), ((81, 200), "word_ppl_ratio", (50, 100))]
)
def test_the_perplexity_ratio_of_documents_is_per_token_where_these_are_the_same(
    tokens: tuple[int, int], name: str, units: tuple[int, int]
) -> None:
    found = measure(documents(tokens))
    total = sum(units)
    assert found.metrics[name].value == pytest.approx(math.exp(40 / total)) and found.metrics[name].n == total
    assert found.p_values[name] == pytest.approx(2 * stats.t.sf(_t_of_two_documents(*units), 1))
    assert {"ppl_ratio", "word_ppl_ratio"} & set(found.metrics) == {name}
    assert documents(tokens)[0].similarity == pytest.approx(math.exp(-10 / units[0]))


def _t_of_two_documents(first: int, second: int) -> float:
    """Log-ratios of 10 and of 30 over so many units: their mean over its linearised error."""
    mean = 40 / (first + second)
    residuals = [10 - first * mean, 30 - second * mean]
    return float(mean / (math.hypot(*residuals) * math.sqrt(2) / (first + second)))


def test_a_document_that_failed_makes_the_ratio_nan() -> None:
    document = answer(form=DOCUMENT, scores=(-20.0,), units=10.0, scored_tokens=12)
    found = measure([AnswerPair(document, document), AnswerPair(document, answer(form=DOCUMENT, error="HTTP 500"))])
    assert math.isnan(found.metrics["ppl_ratio"].value) and math.isnan(found.p_values["ppl_ratio"])
    found = measure([AnswerPair(document, answer(form=DOCUMENT, error="HTTP 500"))])
    assert math.isnan(found.metrics["word_ppl_ratio"].value)


def test_a_document_that_became_impossible_has_an_infinite_ratio() -> None:
    pairs = [AnswerPair(answer(scores=(-100.0,), units=50.0), answer(scores=(-100.0,), units=50.0))] * 3
    worse = AnswerPair(answer(scores=(-100.0,), units=50.0), answer(scores=(-math.inf,), units=50.0))
    found = measure([*pairs, worse])
    assert found.metrics["word_ppl_ratio"].value == math.inf
    assert found.p_values.get("word_ppl_ratio") != 1.0


def gap(kl: float, first: float = -1.0, second: float = -1.0, *, same: bool = True) -> Gap:
    return Gap(kl, first, second, same, True)


TEXTS = [
    [gap(0.1, math.log(0.5), math.log(0.25)), gap(0.3, math.log(0.5), math.log(0.5), same=False)],
    [gap(0.2, math.log(0.25), math.log(0.5))],
    [gap(0.0, math.log(0.5), math.log(0.25))],
]


def test_forced_texts_by_hand() -> None:
    found = measure_forced(Variant("b"), TEXTS)
    values = {name: estimate.value for name, estimate in found.metrics.items()}
    assert values["kl_mean"] == pytest.approx(0.15)
    assert values["kl_median"] == pytest.approx(0.15)
    assert values["kl_max"] == 0.3
    assert values["kl_p90"] == pytest.approx(0.27)
    assert values["top1_agreement"] == 0.75
    assert values["delta_p_rms"] == pytest.approx(math.sqrt(3 * 0.25**2 / 4))
    assert values["ppl_ratio"] == pytest.approx(2 ** (1 / 4))
    assert found.counts == {"positions": 4, "nonfinite_positions": 0, "forced_texts": 3}


def test_the_interval_of_kl_is_over_texts() -> None:
    """Residuals of the sums are 0.4 - 2 * 0.15, 0.2 - 0.15 and 0 - 0.15."""
    estimate = measure_forced(Variant("b"), TEXTS).metrics["kl_mean"]
    error = math.sqrt((0.1**2 + 0.05**2 + 0.15**2) * 3 / 2) / 4
    assert estimate.stderr == pytest.approx(error)
    reach = stats.t.ppf(0.975, 2) * error  # three texts: two degrees of freedom
    assert (estimate.low, estimate.high) == pytest.approx(
        (0.0, 0.15 * math.exp(reach / 0.15))
    )  # longer on the side of the tail
    assert (
        measure_forced(Variant("b"), [[gap(0.0)], [gap(0.0)], [gap(0.9)]]).metrics["kl_mean"].low == 0.0
    )  # no KL is below 0


DIVERGENCES = ("kl_mean", "kl_median", "kl_p90", "kl_p95", "kl_p99", "kl_max")


def test_infinite_divergences_are_in_every_metric() -> None:
    """Twelve of 72 positions where the token is impossible to the candidate."""
    broken = gap(math.inf, -1.0, -math.inf, same=False)
    texts = [[*[gap(0.0)] * 10, *[broken] * 2] for _ in range(6)]
    found = measure_forced(Variant("b"), texts)
    values = {name: estimate.value for name, estimate in found.metrics.items()}
    assert values["kl_mean"] == values["kl_max"] == values["kl_p99"] == values["kl_p90"] == math.inf
    assert values["kl_median"] == 0.0
    assert values["top1_agreement"] == pytest.approx(60 / 72)
    assert values["delta_p_rms"] == pytest.approx(math.sqrt(12 / 72) * math.exp(-1.0))
    assert values["ppl_ratio"] == math.inf and found.p_values["ppl_ratio"] == 0.0


def test_nan_makes_every_divergence_nan_and_agrees_with_nothing() -> None:
    found = measure_forced(Variant("b"), [*TEXTS, [Gap(math.nan, -1.0, math.nan, False, True)]])
    values = {name: estimate.value for name, estimate in found.metrics.items()}
    assert all(math.isnan(values[name]) for name in (*DIVERGENCES, "delta_p_rms", "ppl_ratio"))
    assert math.isnan(found.p_values["ppl_ratio"])
    assert values["top1_agreement"] == 3 / 5


def test_categories_have_their_own_rates() -> None:
    pairs = [
        AnswerPair(given("1", True, category="sums"), given("1", True)),
        AnswerPair(given("2", True, category="sums"), given("3", False)),
        AnswerPair(answer("x", category="tales"), answer("x")),
    ]
    sums, tales = group_measurements(numbered(pairs))
    assert (sums["category"], sums["n"], tales["category"], tales["n"]) == ("sums", 2, "tales", 1)
    assert (sums["match_rate"][0], sums["flip_rate"][0], sums["acc_baseline"][0], sums["acc"][0]) == (0.5, 0.5, 1.0, 0.5)
    assert tales["match_rate"][0] == 1.0 and "acc" not in tales


def test_a_variant_has_every_sample_and_reports_what_is_left_out() -> None:
    first = [given("5", True, id="1"), given("6", True, id="2")]
    second = [given("5", True, id="1"), given("7", False, id="3")]
    gaps = ForcedGaps({"t/1": [gap(0.5), gap(0.25), gap(0.0)]}, expected=1)
    variant = compared("b", pair(first, second), gaps)
    assert variant.counts["samples"] == 1 and variant.metrics["kl_max"].value == 0.5
    assert variant.warnings == ["2 samples are in one run only and are left out"]
    assert variant.rows[0]["kl"] == {"mean": 0.25, "max": 0.5, "median": 0.25}


def graded(value: float | None, **known: Any) -> Answer:
    return answer("x", value=value, **known)


def test_graded_values_have_a_mean_difference_with_the_paired_t_test() -> None:
    """From 0.9 to about 0.12, and one sample that happens to be 1 and 1: it does not get an accuracy of its own."""
    before = [1.0, *(0.9 + 0.002 * k for k in range(39))]
    after = [1.0, *(0.12 + 0.003 * (k % 7) for k in range(39))]
    found = measure([AnswerPair(graded(a), graded(b)) for a, b in zip(before, after, strict=True)])
    assert "acc" not in found.metrics
    drop = found.metrics["score_drop"]
    differences = [a - b for a, b in zip(before, after, strict=True)]
    assert drop.value == pytest.approx(sum(differences) / 40) and drop.n == 40
    spread = max(differences) - min(differences)
    expected = stats.ttest_1samp([*differences, -spread, spread], 0.0)
    assert found.p_values["score_drop"] == pytest.approx(expected.pvalue, rel=1e-6)
    interval = expected.confidence_interval()
    assert (drop.low, drop.high) == pytest.approx((interval.low, max(interval.high, drop.value)))
    assert found.metrics["score_baseline"].value == pytest.approx(sum(before) / 40)
    assert found.metrics["score"].value == pytest.approx(sum(after) / 40)


def test_a_failed_request_counts_as_zero_on_a_known_scale() -> None:
    """On another scale its value is unknown: the metric is NaN, and breaks every rule."""
    pairs = [AnswerPair(graded(0.8), answer(error="HTTP 500")), AnswerPair(graded(0.5), graded(0.5))]
    assert measure(pairs).metrics["score"].value == 0.25
    below = [AnswerPair(graded(-5.0), answer(error="HTTP 500")), AnswerPair(graded(-5.0), graded(-5.0))]
    assert math.isnan(measure(below).metrics["score_drop"].value)


def test_two_graded_samples_without_a_difference_have_a_long_interval() -> None:
    drop = measure([AnswerPair(graded(0.9), graded(0.9))] * 2).metrics["score_drop"]
    assert drop.value == 0.0 and drop.low is not None and drop.high is not None and drop.low < -0.5 and drop.high > 0.5
    other = measure([AnswerPair(graded(7.0), graded(7.0))] * 2).metrics["score_drop"]
    assert other.value == 0.0 and other.low is None  # the scale is unknown
    assert measure([AnswerPair(graded(0.9), graded(0.1))] * 2).p_values["score_drop"] > 0.3


def test_a_sample_without_a_value_on_one_side_is_left_out() -> None:
    found = measure([AnswerPair(graded(0.5), graded(None)), AnswerPair(graded(0.5), graded(0.25))])
    assert (found.metrics["score"].value, found.metrics["score"].n) == (0.25, 1)


def test_a_baseline_that_fails_breaks_rules() -> None:
    """Half of the baseline failed: a candidate that is wrong on a quarter is no improvement."""
    failed = Answer("t", "1", "c", "p", "gold", "", comparable=True, error="HTTP 500")
    pairs = [AnswerPair(failed, given("5", True))] * 20 + [AnswerPair(given("5", True), given("6", False))] * 10
    variant = compared("b", paired(pairs), None)
    rules = parse_rules("acc_drop>0.01, flip_rate>0.99, match_rate<0.01", "acc_drop<0.01")
    outcomes = judge(Check("compare", ["t"], [variant]), rules)
    assert [outcome.status for outcome in outcomes] == [BROKEN] * 4
    assert "the baseline failed on 20 of 30 samples" in outcomes[0].reason


def test_texts_without_an_answer_on_either_side_are_no_agreement() -> None:
    unanswered = [AnswerPair(answer("no number", comparable=True), answer("none", comparable=True))] * 3
    found = measure([*unanswered, AnswerPair(given("5", True), given("5", True))])
    assert (found.metrics["flip_rate"].n, found.counts["unextracted"]) == (1, 3)
    assert "flip_rate" not in measure(unanswered).metrics


def test_tasks_of_zeros_and_ones_stay_accuracy_beside_graded_ones() -> None:
    def of(task: str, value: float) -> Answer:
        return Answer(task, "1", "c", "p", None, "x", value=value, metric="acc")

    found = measure([AnswerPair(of("exact", 1.0), of("exact", 0.0)), AnswerPair(of("graded", 0.25), of("graded", 0.5))])
    assert (found.metrics["acc_drop"].value, found.metrics["acc_drop"].n) == (1.0, 1)
    assert (found.metrics["score_drop"].value, found.metrics["score_drop"].n) == (-0.25, 1)


def test_two_empty_answers_are_no_agreement() -> None:
    unanswered = [AnswerPair(answer("", comparable=True), answer("", comparable=True))] * 11
    answered = [AnswerPair(given(str(n), True), given(str(n if n else 9), True)) for n in range(4)]
    found = measure([*unanswered, *answered])
    assert (found.metrics["match_rate"].value, found.metrics["match_rate"].n) == (3 / 4, 4)
    assert (found.metrics["flip_rate"].value, found.metrics["flip_rate"].n) == (1 / 4, 4)
    assert (found.metrics["empty_rate"].value, found.metrics["empty_rate"].n) == (11 / 15, 15)
    assert (found.counts["empty"], found.counts["both_empty"], found.counts["severity_empty"]) == (11, 11, 11)
    only = measure(unanswered)
    assert not {"match_rate", "flip_rate", "similarity"} & set(only.metrics)


def test_flips_of_truncated_answers_are_counted() -> None:
    cut = given("6", False, finish_reason="length")
    pairs = [
        AnswerPair(given("5", True), cut),
        AnswerPair(given("5", True), given("7", False)),
        AnswerPair(given("5", True), given("5", True)),
    ]
    variant = compared("b", paired(pairs), None)
    assert (variant.counts["cut_short"], variant.counts["flips"], variant.counts["flips_cut_short"]) == (1, 2, 1)
    assert any(
        "1 of 3 samples have an answer that ended at the token limit, 1 of 2 flips" in warning
        for warning in variant.warnings
    )


def test_texts_that_one_engine_could_not_score_break_rules_on_divergences() -> None:
    gaps = ForcedGaps({"t/1": [gap(0.0)]}, expected=3, failed=2, error="the score is NaN")
    variant = compared("b", paired([TABLE[0]]), gaps)
    assert variant.metrics["unscored_rate"].value == pytest.approx(2 / 3)
    (outcome,) = judge(Check("compare", ["t"], [variant]), parse_rules("kl_mean>5"))
    assert outcome.status == BROKEN and "2 of 3 texts could not be scored by both: the score is NaN" in outcome.reason


def test_texts_that_are_tokenized_differently_are_reported_with_the_rule() -> None:
    gaps = ForcedGaps({"t/1": [gap(0.0)]}, expected=3, different_tokens=2)
    variant = compared("b", paired([TABLE[0]]), gaps)
    (outcome,) = judge(Check("compare", ["t"], [variant]), parse_rules("kl_mean>5"))
    assert outcome.status == KEPT and "2 of 3 texts are tokenized differently" in outcome.reason


def test_reasoning_is_compared_apart_from_the_answers() -> None:
    pairs = [
        AnswerPair(answer("4", reasoning="2 and 2"), answer("4", reasoning="two and two")),
        AnswerPair(answer("5", id="2", reasoning="2 and 3"), answer("5", id="2", reasoning="2 and 3")),
        AnswerPair(answer("6", id="3"), answer("6", id="3")),  # it did not reason
    ]
    found = values(pairs)
    assert found["match_rate"] == (1.0, 3)
    assert found["reasoning_match_rate"] == (0.5, 2) and 0.5 < found["reasoning_similarity"][0] < 1
    assert "reasoning_match_rate" not in values(pairs[2:])


# Repeats.


def repeated(name: str, values: Sequence[float], texts: Sequence[str]) -> list[Answer]:
    """The repeats of one sample, each right or wrong."""
    mean = sum(values) / len(values)
    return [answer(text, id=name, value=mean, mean_of_right=True) for text in texts]


def test_all_repeats_count_and_those_of_a_sample_are_not_independent() -> None:
    a = [*repeated("1", [1, 1], ["x", "x"]), *repeated("2", [1, 0], ["x", "y"]), *repeated("3", [0, 1], ["z", "x"])]
    b = [*repeated("1", [1, 0], ["x", "w"]), *repeated("2", [0, 0], ["v", "w"]), *repeated("3", [0, 1], ["z", "x"])]
    found = measure_answers(Variant("b"), [AnswerPair(*sides) for sides in pair(a, b).pairs])
    estimates = found.metrics
    assert estimates["acc_baseline"].value == pytest.approx(2 / 3) and estimates["acc_baseline"].n == 3
    assert estimates["acc"].value == pytest.approx(1 / 3) and estimates["acc"].n == 3
    assert "score" not in estimates, "the mean of right and wrong repeats is an accuracy"
    losses = [0.5, 0.5, 0.0]
    assert estimates["acc_drop"].value == pytest.approx(1 / 3)
    assert estimates["acc_drop"].stderr == pytest.approx(stats.sem(losses))
    assert found.p_values["acc_drop"] == pytest.approx(stats.ttest_1samp([*losses, -0.5, 0.5], 0).pvalue)
    assert (found.counts["samples"], found.counts["regressions"], found.counts["improvements"]) == (3, 2, 0)
    # Half of six texts are the same, in samples of which one differs once, one twice and one never.
    assert (estimates["match_rate"].value, estimates["match_rate"].n) == (0.5, 6)
    assert (estimates["match_rate"].high or 0) - (estimates["match_rate"].low or 0) > 0.8, "three samples, not six"


def test_a_sample_of_which_one_repeat_failed_counts_as_failed() -> None:
    """As its score does: it has none."""
    failing = [answer("x", id="1", value="failed"), answer(id="1", error="HTTP 500", value="failed")]
    good = [*repeated("1", [1, 1], ["x", "x"]), *repeated("2", [1, 1], ["x", "x"])]
    failing += repeated("2", [1, 1], ["x", "x"])
    found = measure_answers(Variant("b"), [AnswerPair(*sides) for sides in pair(good, failing).pairs])
    assert (found.metrics["acc_drop"].value, found.metrics["acc_drop"].n) == (0.5, 2)
    assert (found.counts["failed"], found.counts["samples"], found.metrics["failure_rate"].value) == (1, 2, 0.5)
