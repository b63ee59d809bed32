"""Rules that a check must keep: `flip_rate>0.02, kl_mean>0.05, acc_drop>0.01@p<0.05` name what makes it fail."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mill.api.errors import MillError, SpecError, UnknownName
from mill.checks.glossary import FIGURES, written
from mill.checks.result import Check, Variant

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_NUMBER = r"[-+]?[\d.]+(?:e[-+]?\d+)?"
_RULE = re.compile(rf"\s*([a-z][a-z0-9_]*)\s*(>=|<=|>|<)\s*({_NUMBER})\s*(?:@\s*p\s*<\s*({_NUMBER}))?\s*")


class GateFailed(MillError):
    """A check that broke a rule."""

    exit_code = 3


@dataclass(frozen=True)
class Rule:
    """Broken where the figure is as the rule says and, with a p-value, where that is below its bound too."""

    text: str
    figure: str
    compare: str
    bound: float
    p_below: float | None = None

    def broken_by(self, variant: Variant) -> str | None:
        """Why a variant breaks the rule. A figure that was not measured, or is NaN, breaks it: nobody knows better."""
        estimate = variant.figures.get(self.figure)
        if estimate is None:
            return f"{variant.label}: {self.figure} was not measured"
        if math.isnan(estimate.value):
            return f"{variant.label}: {self.figure} is NaN"
        if not _OPERATORS[self.compare](estimate.value, self.bound):
            return None
        told = f"{variant.label}: {self.figure} is {written(self.figure, estimate.value)}"
        if estimate.low is not None and estimate.high is not None:
            told += f" ({written(self.figure, estimate.low)} to {written(self.figure, estimate.high)})"
        if self.p_below is None:
            return f"{told}, which is {self.compare} {self.bound:g}"
        p = variant.p_values.get(self.figure)
        if p is None or math.isnan(p):
            return f"{told}, and there is no test of {self.figure}"
        return f"{told}, which is {self.compare} {self.bound:g} with p = {p:.3g}" if p < self.p_below else None


def parse_rules(text: str) -> list[Rule]:
    rules = []
    for part in filter(str.strip, text.split(",")):
        found = _RULE.fullmatch(part)
        if not found:
            raise SpecError(f"--fail-on: {part.strip()!r} is no rule; write figure>number or figure>number@p<0.05")
        name, compare, bound, p_below = found.groups()
        try:
            rules.append(Rule(part.strip(), name, compare, float(bound), float(p_below) if p_below else None))
        except ValueError:
            raise SpecError(f"--fail-on: {part.strip()!r} holds no number that can be read") from None
    if not rules:
        raise SpecError("--fail-on names no rule; write for instance flip_rate>0.02")
    return rules


@dataclass(frozen=True)
class Verdict:
    """One rule on one variant; `reason` is None where it is kept."""

    rule: Rule
    variant: str
    reason: str | None


def judge(check: Check, rules: Sequence[Rule]) -> list[Verdict]:
    """Every rule on every variant. A figure that no variant has is a misspelt rule, not a broken one."""
    known = {name for variant in check.variants for name in variant.figures}
    for rule in rules:
        if rule.figure not in known | set(FIGURES):
            raise UnknownName("figure", rule.figure, known | set(FIGURES), hint=f"this check has {', '.join(sorted(known))}")
    return [Verdict(rule, variant.label, rule.broken_by(variant)) for rule in rules for variant in check.variants]


def check_names(rules: Sequence[Rule]) -> None:
    """Refuse misspelt figures before anything is computed."""
    for rule in rules:
        if rule.figure not in FIGURES:
            raise UnknownName("figure", rule.figure, FIGURES, hint="docs/checks.md lists them")
