"""Measurements and rules for every input: NaN, infinity, ties, no samples, one sample. Worse input never looks better."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mill.api.response import Token
from mill.checks.answers import CHOICE, DOCUMENT, TEXT, Answer
from mill.checks.compare import compared
from mill.checks.determinism import repeated
from mill.checks.forced import ForcedGaps
from mill.checks.gate import BROKEN, KEPT, judge, parse_rules
from mill.checks.glossary import METRICS
from mill.checks.measurements import forced_series, measure_answers, measure_forced
from mill.checks.pairing import AnswerPair, Pairs
from mill.checks.result import Check, Variant, read_check
from mill.checks.subjects import Pass
from mill.metrics.divergence import Gap
from mill.metrics.estimate import Estimate
from mill.report.sections import summary_markdown
from mill.view.offline import check_page
from tests.fuzz.cases import examples

MANY = examples(1500)
LOGPROBS = st.one_of(st.floats(-30, 0), st.just(-math.inf), st.just(0.0))
VALUES = st.one_of(st.none(), st.just(0.0), st.just(1.0), st.floats(-5, 5), st.just(math.inf), st.just(-math.inf))


@st.composite
def tokens(draw: st.DrawFn) -> tuple[Token, ...]:
    odd = st.one_of(LOGPROBS, st.just(math.nan))
    count = draw(st.integers(0, 4))
    names = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    tops = [tuple((n, draw(odd)) for n in range(draw(st.integers(0, 3)))) for _ in names]
    return tuple(Token(name, "ab c"[name], draw(odd), top) for name, top in zip(names, tops, strict=True))


@st.composite
def answers(draw: st.DrawFn, form: str, choices: int) -> Answer:
    error = draw(st.one_of(st.none(), st.just("HTTP 500")))
    text = draw(st.sampled_from(["", " ", "a", "ab", "abc", "x y z"])) if error is None else ""
    scores = tuple(draw(st.lists(LOGPROBS, min_size=choices, max_size=choices))) if form != TEXT else ()
    return Answer(
        draw(st.sampled_from(["t", "u"])),
        "1",
        "c",
        "a prompt",
        draw(st.sampled_from([None, "gold"])),
        text if form != DOCUMENT else "",
        form=form,
        extracted=text or None,
        comparable=draw(st.booleans()),
        metric="acc",
        value=draw(VALUES) if error is None else None,
        finish_reason=draw(st.sampled_from(["stop", "length", "content_filter", None])),
        tokens=draw(tokens()) if form == TEXT and error is None else None,
        scores=scores if error is None else (),
        units=draw(st.sampled_from([0.0, 0.4, 7.0])) if form == DOCUMENT else 0.0,
        error=error,
    )


@st.composite
def pairs(draw: st.DrawFn) -> AnswerPair:
    form = draw(st.sampled_from([TEXT, CHOICE, DOCUMENT]))
    choices = 1 if form == DOCUMENT else draw(st.integers(1, 3))
    a, b = draw(answers(form, choices)), draw(answers(form, choices))
    return AnswerPair(a, replace(b, task=a.task, gold=a.gold, comparable=a.comparable, units=a.units))


@st.composite
def gaps(draw: st.DrawFn) -> Gap:
    kl = draw(st.one_of(st.floats(0, 20), st.just(math.inf), st.just(math.nan)))
    first, second = draw(LOGPROBS), draw(st.one_of(LOGPROBS, st.just(math.nan)))
    return Gap(kl, first, second, draw(st.booleans()) and not math.isnan(kl), draw(st.booleans()))


TEXTS = st.lists(st.lists(gaps(), max_size=4), max_size=5)


def assert_valid(measured: Variant) -> None:
    for name, estimate in measured.metrics.items():
        info = METRICS[name]
        value, low, high = estimate.value, estimate.low, estimate.high
        assert estimate.n >= 0
        if math.isnan(value):
            continue
        assert info.low - 1e-9 <= value <= info.high + 1e-9, name
        if low is not None and high is not None and math.isfinite(value):
            assert low - 1e-9 <= value <= high + 1e-9, name
            assert info.low - 1e-9 <= low and high <= info.high + 1e-9, name
    for name, p in measured.p_values.items():
        assert name in METRICS and METRICS[name].tested and (math.isnan(p) or 0 <= p <= 1)
    assert all(count >= 0 for count in measured.counts.values())


@MANY
@given(TEXTS)
def test_metrics_of_any_positions_are_valid(texts: list[list[Gap]]) -> None:
    found = measure_forced(Variant("b"), texts)
    assert_valid(found)
    forced_series(texts)
    spoilt = any(math.isnan(gap.kl) for of_text in texts for gap in of_text)
    endless = any(gap.kl == math.inf for of_text in texts for gap in of_text)
    if spoilt:
        assert all(math.isnan(found.metrics[name].value) for name in ("kl_mean", "kl_median", "kl_p99", "kl_max"))
    elif endless:
        assert found.metrics["kl_mean"].value == found.metrics["kl_max"].value == math.inf


WORSE_IS_HIGHER = ("failure_rate", "flip_rate", "acc_drop", "regression_rate")
WORSE_IS_LOWER = ("match_rate", "similarity", "acc", "score")


@MANY
@given(st.lists(pairs(), min_size=1, max_size=6), st.data())
def test_an_answer_that_fails_never_makes_a_metric_look_better(members: list[AnswerPair], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(members) - 1))
    pair = members[index]
    if pair.both_empty:  # left out before, so that its failure is new
        return
    failed = replace(pair.b, error="HTTP 500", text="", value=None, tokens=None, scores=(), extracted=None)
    spoilt = [*members[:index], AnswerPair(pair.a, failed), *members[index + 1 :]]
    before, after = (measure_answers(Variant("b"), one).metrics for one in (members, spoilt))
    for name in (*WORSE_IS_HIGHER, *WORSE_IS_LOWER):
        if name not in before or name not in after or before[name].n != after[name].n:
            continue
        old, new = before[name], after[name]
        if not (math.isfinite(old.value) and math.isfinite(new.value)):
            continue
        if name == "score" and isinstance(pair.b.value, float) and pair.b.value < 0:
            continue  # it may have been the only one below 0, without which failures count as 0
        sign = 1 if name in WORSE_IS_HIGHER else -1
        assert sign * new.value >= sign * old.value - 1e-9, name
        if name in ("failure_rate", "flip_rate", "regression_rate", "match_rate") and None not in (old.low, new.low):
            assert (
                sign * (new.low or 0) >= sign * (old.low or 0) - 1e-9
                and sign * (new.high or 0) >= sign * (old.high or 0) - 1e-9
            )


@MANY
@given(st.lists(st.lists(gaps(), min_size=1, max_size=4), min_size=1, max_size=5), st.data())
def test_a_position_that_diverges_more_never_looks_better(texts: list[list[Gap]], data: st.DataObject) -> None:
    text = data.draw(st.integers(0, len(texts) - 1))
    index = data.draw(st.integers(0, len(texts[text]) - 1))
    old = texts[text][index]
    worse = Gap(math.inf, old.first, -math.inf, False, old.exact)
    spoilt = [[*one] for one in texts]
    spoilt[text][index] = worse
    before, after = measure_forced(Variant("b"), texts).metrics, measure_forced(Variant("b"), spoilt).metrics
    for name in ("kl_mean", "kl_median", "kl_p90", "kl_p95", "kl_p99", "kl_max", "nonfinite_rate", "ppl_ratio"):
        old_value, new_value = before[name].value, after[name].value
        assert math.isnan(old_value) or math.isnan(new_value) or new_value >= old_value, name
    assert after["top1_agreement"].value <= before["top1_agreement"].value


@MANY
@given(st.lists(pairs(), min_size=1, max_size=5), TEXTS, st.integers(0, 2), st.integers(0, 2))
def test_any_check_is_shown_saved_and_read_back(
    tmp_path_factory: pytest.TempPathFactory, members: list[AnswerPair], texts: list[list[Gap]], failed: int, other: int
) -> None:
    found = ForcedGaps({f"t/{n}": one for n, one in enumerate(texts) if one}, expected=len(texts) + failed + other)
    found.failed, found.different_tokens = failed, other
    variant = compared("b", Pairs([(one.a, one.b) for one in members]), found)
    assert_valid(variant)
    check = Check("compare", ["t"], [variant], "a")
    folder = tmp_path_factory.mktemp("check")
    assert read_check(check.save(folder)).to_json() == check.to_json()
    assert variant.verdict
    check_page(check)
    summary_markdown(check)


@MANY
@given(st.lists(st.lists(answers(TEXT, 1), min_size=3, max_size=3), min_size=1, max_size=4))
def test_metrics_of_any_repeated_answers_are_valid(rows: list[list[Answer]]) -> None:
    passes = [Pass(f"{n}", None, [row[n] for row in rows], "run", []) for n in range(3)]
    variant = repeated("all", passes)
    assert_valid(variant)
    check = Check("determinism", ["t"], [variant])
    assert variant.verdict and check_page(check)


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("value", [math.nan, None])
def test_a_metric_that_was_not_measured_breaks_every_rule(name: str, value: float | None) -> None:
    metrics = {} if value is None else {name: Estimate(value, None, None, None, 5)}
    check = Check("compare", ["t"], [Variant("b", metrics=metrics, p_values={name: 0.5})])
    middle = METRICS[name].low + 0.5 if math.isfinite(METRICS[name].low) else 0.5
    both = f"{name}>{middle}, {name}<{middle}"
    rules = parse_rules(both, both)
    assert [outcome.status for outcome in judge(check, rules)] == [BROKEN] * 4


@MANY
@given(
    st.sampled_from(sorted(name for name, info in METRICS.items() if info.low < 0.5)),
    st.one_of(st.floats(0, 1), st.just(math.inf), st.just(math.nan)),
    st.floats(0, 1),
    st.integers(0, 50),
    st.one_of(st.none(), st.floats(0, 1), st.just(math.nan)),
)
def test_a_kept_requirement_is_shown_by_the_whole_interval(
    name: str, value: float, reach: float, n: int, p: float | None
) -> None:
    estimate = Estimate(value, reach, value - reach, value + reach, n)
    p_values = {} if p is None else {name: p}
    check = Check("compare", ["t"], [Variant("b", metrics={name: estimate}, p_values=p_values)])
    (required,) = judge(check, parse_rules(None, f"{name}<0.5"))
    if required.status == KEPT:
        assert value < 0.5 and (not METRICS[name].interval or value + reach < 0.5)
    if METRICS[name].tested:
        (tested,) = judge(check, parse_rules(f"{name}>0.5@p<0.05"))
        if tested.status == KEPT:
            assert value + reach <= 0.5 and p is not None and not math.isnan(p)
