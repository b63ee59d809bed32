"""Figures of small tables, worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mill.api.response import Token
from mill.checks.answers import Answer
from mill.checks.compare import compared
from mill.checks.figures import forced_figures, forced_series, free_figures, group_figures
from mill.checks.forced import ForcedGaps
from mill.checks.pairing import Pair
from mill.metrics.divergence import Gap


def answer(text: str = "", *, id: str = "1", category: str = "c", **known: Any) -> Answer:
    return Answer("t", id, category, "a prompt", None, text, **known)


def given(text: str, right: bool, **known: Any) -> Answer:
    return answer(text, extracted=text, comparable=True, right=right, **known)


FAILED = answer(comparable=True, error="HTTP 500")
TABLE = [
    Pair(given("4", True), given("4", True)),
    Pair(given("5", True), given("6", False)),
    Pair(given("7", False), given("8", True)),
    Pair(given("9", True), FAILED),
    Pair(given("1", False), given("1", False)),
    Pair(answer("a story"), answer("a story")),
]


def values(pairs: list[Pair]) -> dict[str, tuple[float, int]]:
    return {name: (estimate.value, estimate.n) for name, estimate in free_figures(pairs).estimates.items()}


def test_a_table_of_six_samples() -> None:
    found = values(TABLE)
    assert found["failure_rate"] == (1 / 6, 6)
    assert found["match_rate"] == (3 / 6, 6)
    assert found["similarity"] == (3 / 6, 6)
    assert found["flip_rate"] == (3 / 5, 5)
    assert found["acc_baseline"] == (3 / 5, 5)
    assert found["acc"] == (2 / 5, 5)
    assert found["acc_drop"] == (pytest.approx(1 / 5), 5)
    assert found["regression_rate"] == (2 / 5, 5)
    assert found["improvement_rate"] == (1 / 5, 5)


def test_counts_and_p_values_of_the_table() -> None:
    found = free_figures(TABLE)
    assert found.p_values["acc_drop"] == 1.0  # two worse, one better: 2 * (1 + 3) / 8
    wanted = {"samples": 6, "failed": 1, "flips": 3, "regressions": 2, "improvements": 1, "parted": 2}
    wanted |= {"severity_identical": 3, "severity_severe": 2, "severity_failed": 1}
    assert found.counts == wanted


def test_the_paired_error_of_a_lost_accuracy() -> None:
    """Losses of 0, 1, -1, 1 and 0 have mean 0.2 and variance 0.7."""
    drop = free_figures(TABLE).estimates["acc_drop"]
    assert drop.stderr == pytest.approx(math.sqrt(0.7 / 5))


def test_regressions_are_not_improvements() -> None:
    worse = [Pair(given("5", True), given("6", False))] * 6
    found = free_figures(worse)
    assert found.p_values["acc_drop"] == 2 / 64
    assert found.estimates["acc_drop"].value == 1.0
    better = free_figures([Pair(pair.b, pair.a) for pair in worse])
    assert better.estimates["acc_drop"].value == -1.0
    assert (better.counts["regressions"], better.counts["improvements"]) == (0, 6)


def test_a_sample_that_fails_on_both_sides_counts_as_changed() -> None:
    found = values([*TABLE, Pair(FAILED, FAILED)])
    assert found["failure_rate"] == (2 / 7, 7)
    assert found["match_rate"] == (3 / 7, 7)
    assert found["flip_rate"] == (4 / 6, 6)


def test_a_sample_with_gold_that_fails_on_both_sides_is_right_on_neither() -> None:
    failed = Answer("t", "1", "c", "a prompt", "42", "", comparable=True, error="HTTP 500")
    found = values([*TABLE, Pair(failed, failed)])
    assert found["acc_baseline"] == (3 / 6, 6)
    assert found["acc"] == (2 / 6, 6)


def test_without_gold_there_is_no_accuracy_and_without_extraction_no_flip() -> None:
    assert set(values([Pair(answer("a"), answer("b"))])) == {"failure_rate", "match_rate", "similarity"}


def parted(place: int, margin: float | None) -> Pair:
    """Texts whose tokens differ at a place, where the baseline's best two lay so far apart."""
    top = () if margin is None else ((1, -0.1), (2, -0.1 - margin))
    one = tuple(Token(n, "x", -0.1, top) for n in range(5))
    other = tuple(Token(n if n < place else 99, "x", -0.1) for n in range(5))
    return Pair(answer("xxxxx", tokens=one), answer("x" * place + "y", tokens=other))


def test_partings_at_near_ties_are_told_from_clear_ones() -> None:
    found = free_figures([parted(1, 0.05), parted(2, 0.5), parted(3, 2.0), TABLE[0]])
    assert found.counts["parted"] == 3
    assert (found.counts["near_ties"], found.counts["clear_partings"]) == (1, 2)
    assert found.estimates["first_parting"].value == 2.0
    assert found.estimates["parting_margin"].value == pytest.approx(2.55 / 3)
    assert (found.estimates["clear_parting_rate"].value, found.estimates["clear_parting_rate"].n) == (2 / 4, 4)


def test_a_margin_that_is_not_known_leaves_the_rate_of_clear_partings_out() -> None:
    found = free_figures([parted(1, 0.5), parted(2, None)])
    assert "clear_parting_rate" not in found.estimates
    assert found.estimates["first_parting"].n == 2


def test_a_margin_that_is_nan_is_no_near_tie() -> None:
    found = free_figures([parted(1, math.nan), parted(2, 0.05)])
    assert found.counts["near_ties"] == 1
    assert "clear_parting_rate" not in found.estimates or found.estimates["clear_parting_rate"].value > 0


def test_scores_of_choices() -> None:
    a, b = answer(" x", scores=(-1.0, -2.0)), answer(" x", scores=(-1.5, -2.25))
    far = Pair(answer(" x", scores=(-1.0,)), answer(" x", scores=(-4.0,)))
    found = free_figures([Pair(a, b), far, Pair(a, FAILED)]).estimates
    assert found["logprob_shift"].value == pytest.approx((0.5 + 0.25 + 3.0) / 3)
    assert found["logprob_shift_max"].value == 3.0
    assert "ppl_ratio" not in found


def test_the_perplexity_ratio_of_documents_weighs_each_word_alike() -> None:
    pairs = [
        Pair(answer(scores=(-100.0,), units=50.0), answer(scores=(-110.0,), units=50.0)),
        Pair(answer(scores=(-200.0,), units=100.0), answer(scores=(-230.0,), units=100.0)),
    ]
    found = free_figures(pairs)
    assert found.estimates["ppl_ratio"].value == pytest.approx(math.exp(40 / 150))
    assert found.estimates["ppl_ratio"].n == 150
    assert 0 < found.p_values["ppl_ratio"] < 0.05


def document(score: float) -> Answer:
    return answer(scores=(score,), units=50.0, spoken=False)


def test_documents_that_are_only_scored_are_not_called_the_same_text() -> None:
    pairs = [Pair(document(-100.0), document(-190.0))] * 3
    found = free_figures(pairs)
    assert "match_rate" not in found.estimates or found.estimates["match_rate"].value == 0.0
    assert not found.counts.get("severity_identical")


def test_a_document_that_became_impossible_is_no_even_match() -> None:
    pairs = [Pair(answer(scores=(-100.0,), units=50.0), answer(scores=(-100.0,), units=50.0))] * 3
    worse = Pair(answer(scores=(-100.0,), units=50.0), answer(scores=(-math.inf,), units=50.0))
    found = free_figures([*pairs, worse])
    assert found.estimates["ppl_ratio"].value == math.inf
    assert found.p_values.get("ppl_ratio") != 1.0


def gap(kl: float, first: float = -1.0, second: float = -1.0, *, same: bool = True) -> Gap:
    return Gap(kl, first, second, same, True)


TEXTS = [
    [gap(0.1, math.log(0.5), math.log(0.25)), gap(0.3, math.log(0.5), math.log(0.5), same=False)],
    [gap(0.2, math.log(0.25), math.log(0.5))],
    [gap(0.0, math.log(0.5), math.log(0.25))],
]


def test_forced_texts_by_hand() -> None:
    found = forced_figures(TEXTS)
    values = {name: estimate.value for name, estimate in found.estimates.items()}
    assert values["kl_mean"] == pytest.approx(0.15)
    assert values["kl_median"] == pytest.approx(0.15)
    assert values["kl_max"] == 0.3
    assert values["kl_p90"] == pytest.approx(0.27)
    assert values["top1_agreement"] == 0.75
    assert values["delta_p_rms"] == pytest.approx(math.sqrt(3 * 0.25**2 / 4))
    assert values["ppl_ratio"] == pytest.approx(2 ** (1 / 4))
    assert found.counts == {"places": 4, "nonfinite_places": 0, "forced_texts": 3}


def test_the_interval_of_kl_is_over_texts() -> None:
    """Residuals of the sums are 0.4 - 2 * 0.15, 0.2 - 0.15 and 0 - 0.15."""
    estimate = forced_figures(TEXTS).estimates["kl_mean"]
    error = math.sqrt((0.1**2 + 0.05**2 + 0.15**2) * 3 / 2) / 4
    assert estimate.stderr == pytest.approx(error)
    assert (estimate.low, estimate.high) == pytest.approx((0.15 - 1.959964 * error, 0.15 + 1.959964 * error))
    assert forced_figures([[gap(0.0)], [gap(0.0)], [gap(0.9)]]).estimates["kl_mean"].low == 0.0  # no KL is below 0


def test_places_without_a_finite_divergence_are_counted() -> None:
    found = forced_figures([*TEXTS, [gap(math.nan), gap(math.inf, -1.0, -math.inf)]])
    assert (found.estimates["nonfinite_rate"].value, found.estimates["nonfinite_rate"].n) == (2 / 6, 6)
    assert found.counts["nonfinite_places"] == 2
    only = forced_figures([[gap(math.nan)]])
    assert set(only.estimates) == {"nonfinite_rate", "kl_mean"} and math.isnan(only.estimates["kl_mean"].value)


def test_agreement_place_by_place() -> None:
    found = forced_series(TEXTS)
    assert found["kl"] == [0.1, 0.3, 0.2, 0.0]
    assert found["agreement_by_place"] == [
        {"place": 0, "agreement": 1.0, "n": 3},
        {"place": 1, "agreement": 0.0, "n": 1},
    ]


def test_categories_have_rates_of_their_own() -> None:
    pairs = [
        Pair(given("1", True, category="sums"), given("1", True)),
        Pair(given("2", True, category="sums"), given("3", False)),
        Pair(answer("x", category="tales"), answer("x")),
    ]
    sums, tales = group_figures(pairs)
    assert (sums["category"], sums["n"], tales["category"], tales["n"]) == ("sums", 2, "tales", 1)
    assert (sums["match_rate"][0], sums["flip_rate"][0], sums["acc_baseline"][0], sums["acc"][0]) == (0.5, 0.5, 1.0, 0.5)
    assert tales["match_rate"][0] == 1.0 and "acc" not in tales


def test_a_variant_tells_every_sample_and_what_is_left_out() -> None:
    first = [given("5", True, id="1"), given("6", True, id="2")]
    second = [given("5", True, id="1"), given("7", False, id="3")]
    gaps = ForcedGaps({"t/1": [gap(0.5), gap(0.25), gap(0.0)]})
    variant = compared("b", first, second, gaps)
    assert variant.counts["samples"] == 1 and variant.figures["kl_max"].value == 0.5
    assert variant.notes == ["2 samples are in one run only and are left out"]
    assert variant.rows[0]["kl"] == {"mean": 0.25, "max": 0.5, "median": 0.25}
