"""Rules on checks: what breaks them, and what is no rule."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import pytest

from mill.api.errors import MillError, SpecError, UnknownName
from mill.checks.gate import GateFailed, check_names, judge, parse_rules
from mill.checks.result import Check, Variant
from mill.metrics.estimate import around
from mill.metrics.paired import rate
from mill.report.junit import as_junit


def check(**values: float) -> Check:
    figures = {name: around(value, None, 10) for name, value in values.items()}
    return Check("compare", ["t"], [Variant("b", figures=figures, p_values={"acc_drop": 0.03})], "a")


def broken(rule: str, **values: float) -> str | None:
    (verdict,) = judge(check(**values), parse_rules(rule))
    return verdict.reason


def test_rules_are_read() -> None:
    one, other = parse_rules(" flip_rate > 0.02 ,acc_drop>=-1e-2@p<0.05")
    assert (one.figure, one.compare, one.bound, one.p_below) == ("flip_rate", ">", 0.02, None)
    assert (other.figure, other.compare, other.bound, other.p_below) == ("acc_drop", ">=", -0.01, 0.05)
    assert one.text == "flip_rate > 0.02"


@pytest.mark.parametrize(
    ("rule", "breaks"),
    [
        ("flip_rate>0.1", True),
        ("flip_rate>0.2", False),
        ("flip_rate>=0.2", True),
        ("flip_rate<0.2", False),
        ("flip_rate<=0.2", True),
        ("flip_rate<0.3", True),
    ],
)
def test_a_bound_is_broken_on_its_side(rule: str, breaks: bool) -> None:
    assert (broken(rule, flip_rate=0.2) is not None) is breaks


def test_a_p_value_must_be_below_its_bound_too() -> None:
    assert broken("acc_drop>0.01@p<0.05", acc_drop=0.2) == "b: acc_drop is 20.0 %, which is > 0.01 with p = 0.03"
    assert broken("acc_drop>0.01@p<0.03", acc_drop=0.2) is None
    assert broken("acc_drop>0.01@p<0.05", acc_drop=0.0) is None


def test_a_figure_without_a_test_breaks_a_rule_that_wants_one() -> None:
    assert broken("flip_rate>0.1@p<0.05", flip_rate=0.2) == "b: flip_rate is 20.0 %, and there is no test of flip_rate"


def test_what_is_not_known_breaks_a_rule() -> None:
    assert broken("kl_mean>0.1") == "b: kl_mean was not measured"
    assert broken("kl_mean>0.1", kl_mean=math.nan) == "b: kl_mean is NaN"
    assert broken("kl_mean<0.1", kl_mean=math.nan) == "b: kl_mean is NaN"
    assert broken("kl_mean>0.1", kl_mean=math.inf) == "b: kl_mean is inf, which is > 0.1"


def test_a_p_value_that_is_nan_does_not_keep_a_rule() -> None:
    spoilt = check(acc_drop=0.5)
    spoilt.variants[0].p_values["acc_drop"] = math.nan
    assert judge(spoilt, parse_rules("acc_drop>0.01@p<0.05"))[0].reason is not None


def test_the_interval_is_told() -> None:
    one = Check("compare", ["t"], [Variant("b", figures={"flip_rate": rate(5, 10)})])
    (verdict,) = judge(one, parse_rules("flip_rate>0.1"))
    assert verdict.reason == "b: flip_rate is 50.0 % (23.7 % to 76.3 %), which is > 0.1"


def test_every_rule_is_held_against_every_variant() -> None:
    two = Check("sweep", ["t"], [Variant(label, figures={"acc": rate(n, 10)}) for label, n in (("b", 9), ("c", 3))])
    found = judge(two, parse_rules("acc<0.5, acc>0.95"))
    assert [(one.rule.text, one.variant, one.reason is None) for one in found] == [
        ("acc<0.5", "b", True),
        ("acc<0.5", "c", False),
        ("acc>0.95", "b", True),
        ("acc>0.95", "c", True),
    ]


def test_a_misspelt_figure_is_refused() -> None:
    with pytest.raises(UnknownName, match="unknown figure 'flip_rat'; did you mean flip_rate"):
        judge(check(flip_rate=0.1), parse_rules("flip_rat>0.1"))
    with pytest.raises(UnknownName, match="unknown figure 'kl'"):
        check_names(parse_rules("kl>0.1"))


@pytest.mark.parametrize(
    "text",
    [
        "flip_rate",
        "flip_rate>",
        ">0.1",
        "flip_rate>x",
        "flip_rate=0.1",
        "flip_rate==0.1",
        "flip_rate>2%",
        "flip_rate>0,02",
        "flip_rate>.",
        "flip_rate>1.2.3",
        "flip_rate>nan",
        "flip_rate>0.1@p",
        "flip_rate>0.1@p>0.05",
        "flip_rate>0.1@q<0.05",
        "flip_rate>0.1 acc<1",
        "flip rate>0.1",
        "",
        " , ",
    ],
)
def test_malformed_rules_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="--fail-on"):
        parse_rules(text)


def test_a_broken_rule_ends_with_exit_code_3() -> None:
    assert (GateFailed.exit_code, issubclass(GateFailed, MillError)) == (3, True)


def junit(*checks: Check, rules: str = "") -> ET.Element:
    held = parse_rules(rules) if rules else []
    return ET.fromstring(as_junit([(one, judge(one, held)) for one in checks]))


def test_junit_counts_cases_and_failures() -> None:
    two = Check("sweep", ["x", "y"], [Variant(label, figures={"acc": rate(n, 10)}) for label, n in (("b", 9), ("c", 3))])
    root = junit(two, check(acc=1.0), rules="acc<0.5, acc<0.2")
    sweep, compare = root.findall("testsuite")
    assert (sweep.get("name"), sweep.get("tests"), sweep.get("failures")) == ("sweep x y", "4", "1")
    assert (compare.get("tests"), compare.get("failures")) == ("2", "0")
    assert len(root.findall(".//testcase")) == 6
    (failure,) = root.findall(".//failure")
    assert failure.get("message") == "c: acc is 30.0 % (10.8 % to 60.3 %), which is < 0.5"
    (case,) = [case for case in root.iter("testcase") if case.find("failure") is not None]
    assert (case.get("classname"), case.get("name")) == ("c", "acc<0.5")


def test_junit_without_rules_has_a_case_for_each_variant() -> None:
    root = junit(Check("sweep", ["t"], [Variant("b"), Variant("c")]))
    assert [case.get("classname") for case in root.iter("testcase")] == ["b", "c"]
    assert root[0].get("tests") == "2" and root[0].get("failures") == "0"


def test_junit_survives_what_models_are_called() -> None:
    label = 'a"<b>&\x00\x07\x1b[31m\ud800\ufffe\n]]>'
    root = junit(Check("compare", ["t\x08"], [Variant(label, figures={"acc": rate(1, 2)})]), rules="acc<0.9")
    (case,) = root.iter("testcase")
    assert (case.get("classname") or "").startswith('a"<b>&')
    assert root[0].get("failures") == "1"
    as_junit([(Check("compare", ["t"], [Variant(label)]), [])]).encode("utf-8")
