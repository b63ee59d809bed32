"""Rules on checks: what keeps and breaks them, and what is refused."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from random import Random

import pytest

from mill.api.errors import SpecError, UnknownName
from mill.checks.gate import (
    BROKEN,
    INCONCLUSIVE,
    KEPT,
    GateFailed,
    GateInconclusive,
    RuleOutcome,
    check_names,
    conclude,
    judge,
    judge_all,
    parse_rules,
)
from mill.checks.measurements import measure_forced
from mill.checks.result import Check, Variant
from mill.metrics.divergence import Gap
from mill.metrics.estimate import Estimate, around
from mill.metrics.paired import rate, rate_difference
from mill.report.checks import as_junit


def check(**values: float) -> Check:
    metrics = {name: around(value, None, 10) for name, value in values.items()}
    return Check("compare", ["t"], [Variant("b", metrics=metrics, p_values={"acc_drop": 0.03})], "a")


def judged(rule: str, **values: float) -> RuleOutcome:
    (outcome,) = judge(check(**values), parse_rules(rule))
    return outcome


@pytest.mark.parametrize(
    ("rule", "breaks"),
    [("flip_rate>0.2", False), ("flip_rate>=0.2", True), ("flip_rate<0.2", False), ("flip_rate<=0.2", True)],
)
def test_a_bound_is_broken_on_its_side(rule: str, breaks: bool) -> None:
    assert (judged(rule, flip_rate=0.2).status == BROKEN) is breaks


def lost(worse: int, better: int, n: int, p: float) -> Check:
    metrics = {"acc_drop": rate_difference(worse, better, n)}
    return Check("compare", ["t"], [Variant("b", metrics=metrics, p_values={"acc_drop": p})])


def test_a_test_without_enough_samples_is_inconclusive() -> None:
    """15 points lost on 60 samples with p = 0.078 is no pass, and 60 samples without a change show no loss below a point."""
    few = lost(15, 6, 60, 0.078)
    (outcome,) = judge(few, parse_rules("acc_drop>0.01@p<0.05"))
    assert outcome.status == INCONCLUSIVE
    assert outcome.reason.startswith("acc_drop is 15.0 % (") and "p = 0.078; n = 60 is too few" in outcome.reason
    (outcome,) = judge(lost(0, 0, 60, 1.0), parse_rules("acc_drop>0.01@p<0.05"))
    assert outcome.status == INCONCLUSIVE
    (outcome,) = judge(lost(0, 0, 400, 1.0), parse_rules("acc_drop>0.01@p<0.05"))
    assert outcome.status == KEPT


@pytest.mark.parametrize(
    ("worse", "better", "n", "status"),
    [(0, 0, 400, KEPT), (0, 0, 60, INCONCLUSIVE), (30, 30, 400, INCONCLUSIVE), (90, 10, 400, BROKEN), (10, 90, 400, KEPT)],
)
def test_a_requirement_is_decided_by_the_whole_interval(worse: int, better: int, n: int, status: str) -> None:
    (outcome,) = judge(lost(worse, better, n, 0.5), parse_rules(None, "acc_drop<0.01"))
    assert outcome.status == status


def test_a_requirement_needs_an_interval_unless_the_metric_has_none() -> None:
    one = Check(
        "stress", ["t"], [Variant("b", metrics={"kl_mean": around(0.0, None, 1), "latency_p95": around(0.2, None, 9)})]
    )
    kl, latency = judge(one, parse_rules(None, "kl_mean<0.1, latency_p95<0.5"))
    assert (kl.status, latency.status) == (INCONCLUSIVE, KEPT)
    (outcome,) = judge(one, parse_rules(None, "latency_p95<0.1"))
    assert outcome.status == BROKEN


@pytest.mark.parametrize(
    ("texts", "rule", "status"),
    [(60, "kl_p90<0.2", KEPT), (60, "kl_p90<0.01", BROKEN), (60, "kl_p99<0.2", INCONCLUSIVE), (400, "kl_p99<0.2", KEPT)],
)
def test_a_requirement_on_a_percentile_is_decided_by_its_interval(texts: int, rule: str, status: str) -> None:
    """Sixty texts do not bound the 99th percentile: one text in a hundred may be bad, and none of them is in the sample."""
    random = Random(3)
    gaps = [[Gap(random.uniform(0.01, 0.1), -1.0, -1.0, True, True) for _ in range(8)] for _ in range(texts)]
    variant = measure_forced(Variant("b"), gaps)
    (outcome,) = judge(Check("compare", ["t"], [variant], "a"), parse_rules(None, rule))
    assert outcome.status == status
    if status == INCONCLUSIVE:
        assert re.fullmatch(
            r"kl_p99 is 0\.09\d+ \(at least 0\.09\d+\); the texts are too few to show kl_p99<0\.2", outcome.reason
        )


def test_infinite_and_nan_figures_keep_no_requirement() -> None:
    spoilt = {"kl_mean": Estimate(math.inf, None, None, None, 9), "ppl_ratio": Estimate(math.nan, None, None, None, 9)}
    found = judge(Check("compare", ["t"], [Variant("b", metrics=spoilt)]), parse_rules(None, "kl_mean<5, ppl_ratio<50"))
    assert [outcome.status for outcome in found] == [BROKEN, BROKEN]


@pytest.mark.parametrize("rule", ["flip_rate>2", "flip_rate>=0", "kl_mean<0"])
@pytest.mark.parametrize("option", ["fail_on", "require"])
def test_a_rule_that_does_not_depend_on_the_value_is_refused(rule: str, option: str) -> None:
    with pytest.raises(SpecError, match=r"true: .* is between"):
        parse_rules(**{"fail_on": None, option: rule})


def test_a_p_value_needs_a_metric_with_a_test() -> None:
    with pytest.raises(SpecError, match="only acc_drop, score_drop, ppl_ratio, word_ppl_ratio have a p-value"):
        parse_rules("flip_rate>0.1@p<0.05")
    for p in ("0", "1", "2"):
        with pytest.raises(SpecError, match="a p-value is between 0 and 1"):
            parse_rules(f"acc_drop>0.1@p<{p}")
    with pytest.raises(SpecError, match="is decided by the interval"):
        parse_rules(None, "acc_drop<0.1@p<0.05")


def test_a_check_without_variants_keeps_no_rule() -> None:
    nothing = Check("compare", ["t"], [])
    (outcome,) = judge(nothing, parse_rules("flip_rate>0.1"))
    assert (outcome.status, outcome.message) == (BROKEN, "the check measured nothing")
    with pytest.raises(GateFailed, match="1 of 1 rule broken: the check measured nothing"):
        conclude([(nothing, [outcome])], strict=False)


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(UnknownName, match="unknown metric 'flip_rat'; did you mean flip_rate"):
        judge(check(flip_rate=0.1), parse_rules("flip_rat>0.1"))
    with pytest.raises(UnknownName, match="unknown metric 'kl'"):
        check_names(parse_rules("kl>0.1"))


@pytest.mark.parametrize("text", ["flip_rate", "flip_rate>x", "flip_rate==0.1", "flip_rate>0.1@p>0.05", "", " , "])
def test_malformed_rules_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="--fail_on"):
        parse_rules(text)


def test_strict_makes_inconclusive_rules_broken() -> None:
    few = lost(0, 0, 60, 1.0)
    judged_few = [(few, judge(few, parse_rules(None, "acc_drop<0.01")))]
    with pytest.raises(GateInconclusive, match=r"1 of 1 rule inconclusive: b: acc_drop is 0\.00 %"):
        conclude(judged_few, strict=False)
    with pytest.raises(GateFailed, match="1 of 1 rule broken"):
        conclude(judged_few, strict=True)


def junit(*checks: Check, rules: str = "") -> ET.Element:
    parsed = parse_rules(rules) if rules else []
    return ET.fromstring(as_junit([(one, judge(one, parsed)) for one in checks]))


def test_junit_counts_cases_and_failures() -> None:
    two = Check("sweep", ["x", "y"], [Variant(label, metrics={"acc": rate(n, 10)}) for label, n in (("b", 9), ("c", 3))])
    root = junit(two, check(acc=1.0), rules="acc<0.5, acc<0.2")
    sweep, compare = root.findall("testsuite")
    assert (sweep.get("name"), sweep.get("tests"), sweep.get("failures")) == ("sweep on x, y: b, c", "4", "1")
    assert (compare.get("tests"), compare.get("failures")) == ("2", "0")
    assert len(root.findall(".//testcase")) == 6
    (failure,) = root.findall(".//failure")
    assert failure.get("message") == "c: acc is 30.0 % (6.67 % to 65.2 %), which is < 0.5"
    (case,) = [case for case in root.iter("testcase") if case.find("failure") is not None]
    assert (case.get("classname"), case.get("name")) == ("c", "acc<0.5")


def test_junit_shows_the_verdict_and_does_not_pass_what_is_inconclusive() -> None:
    few = lost(0, 0, 60, 1.0)
    few.variants[0].verdict = "inconclusive at this n"
    root = ET.fromstring(as_junit([(few, judge(few, parse_rules(None, "acc_drop<0.01")))]))
    (failure,) = root.findall(".//failure")
    assert failure.get("type") == "inconclusive" and root[0].get("failures") == "1"
    assert root.findtext(".//system-out") == "b: inconclusive at this n"


def test_junit_escapes_labels() -> None:
    label = 'a"<b>&\x00\x07\x1b[31m\ud800\ufffe\n]]>'
    root = junit(Check("compare", ["t\x08"], [Variant(label, metrics={"acc": rate(1, 2)})]), rules="acc<0.9")
    (case,) = root.iter("testcase")
    assert (case.get("classname") or "").startswith('a"<b>&')
    assert root[0].get("failures") == "1"
    as_junit([(Check("compare", ["t"], [Variant(label)]), [])]).encode("utf-8")


def test_a_gate_over_several_kinds_of_checks_applies_the_rules_of_each() -> None:
    """A determinism check measures no lost accuracy; a rule on a metric that no check measures is broken."""
    compared, repeated = (
        lost(0, 0, 400, 1.0),
        Check("determinism", ["t"], [Variant("all", metrics={"identical_rate": rate(9, 9)})]),
    )
    rules = parse_rules("identical_rate<1", "acc_drop<0.01")
    outcomes = judge_all([compared, repeated], rules)
    assert [[outcome.rule.metric for outcome in by_check] for _, by_check in outcomes] == [["acc_drop"], ["identical_rate"]]
    assert "all rules kept on 2 checks" in conclude(outcomes, strict=False)
    with pytest.raises(GateFailed, match="latency_p95 was not measured"):
        conclude(judge_all([compared, repeated], parse_rules("latency_p95>1")), strict=False)


def test_inconclusive_rules_are_reported_beside_broken_ones() -> None:
    few = lost(0, 0, 60, 1.0)
    few.variants[0].metrics["flip_rate"] = rate(9, 10)
    with pytest.raises(GateFailed, match=r"1 of 2 rules broken: b: flip_rate .*; inconclusive: b: acc_drop"):
        conclude([(few, judge(few, parse_rules("flip_rate>0.1", "acc_drop<0.01")))], strict=False)
