"""Rules on the metrics of a check. A rule is kept, broken or inconclusive.

`--fail_on "flip_rate>0.02"` is broken if the measured value is larger. `--fail_on "acc_drop>0.01@p<0.05"` is broken if a
test shows it. `--require "acc_drop<0.01"` is kept if the whole 95 % interval is below the bound. With too few samples to
decide, a rule is inconclusive: it has not passed.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mill.api.errors import UNDECIDED_EXIT, MillError, SpecError, UnknownName, nearest
from mill.checks.glossary import METRICS, counted, format_interval, format_value
from mill.checks.kinds import kind_of
from mill.checks.measurements import FORCED
from mill.checks.result import Check, Variant
from mill.metrics.estimate import Estimate
from mill.plan.sampling import ALPHA
from mill.runs.adaptive import describe_decision
from mill.store.schema import Decision

KEPT, BROKEN, INCONCLUSIVE = "kept", "broken", "inconclusive"
_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_NUMBER = r"[-+]?[\d.]+(?:e[-+]?\d+)?"
_RULE = re.compile(rf"\s*([a-z][a-z0-9_]*)\s*(>=|<=|>|<)\s*({_NUMBER})\s*(?:@\s*p\s*<\s*({_NUMBER}))?\s*")
_FORMS = {  # of each option: the grammar and an example
    "--fail_on": ("METRIC then > >= < or <= then NUMBER, optionally with @p<NUMBER", "flip_rate>0.02, acc_drop>0.01@p<0.05"),
    "--require": ("METRIC then > >= < or <= then NUMBER", "acc_drop<0.01, kl_mean<=0.05"),
}


class GateFailed(MillError):
    """A check that broke a rule."""

    exit_code = 3


class GateInconclusive(MillError):
    """A check with too few samples to decide a rule."""

    exit_code = UNDECIDED_EXIT


@dataclass(frozen=True)
class RuleOutcome:
    """The outcome of one rule on one variant. `reason` is empty if it is kept without a warning."""

    rule: Rule
    variant: str
    status: str
    reason: str = ""

    @property
    def message(self) -> str:
        """The reason, after the label of the variant."""
        return ": ".join(filter(None, (self.variant, self.reason)))


@dataclass(frozen=True)
class Rule:
    """`required` rules state what must hold, the others what must not."""

    text: str
    metric: str
    compare: str
    bound: float
    p_below: float | None = None
    required: bool = False

    @property
    def option(self) -> str:
        return "--require" if self.required else "--fail_on"

    def judge(self, variant: Variant) -> RuleOutcome:
        """A metric that was not measured, or is NaN, breaks every rule on it."""
        estimate = variant.metrics.get(self.metric)
        if self.metric in variant.unmeasured:
            return self._outcome(variant, BROKEN, f"{self.metric} could not be measured: {variant.unmeasured[self.metric]}")
        if self.metric in variant.inconclusive:
            return self._outcome(variant, INCONCLUSIVE, f"{self.metric}: {variant.inconclusive[self.metric]}")
        if estimate is None:
            return self._outcome(variant, BROKEN, f"{self.metric} was not measured")
        if math.isnan(estimate.value):
            return self._outcome(variant, BROKEN, f"{self.metric} is NaN")
        if variant.decision is not None and (variant.decision.metric, variant.decision.bound) == (self.metric, self.bound):
            return self._outcome(variant, *self._decided(variant.decision))
        if math.isinf(estimate.value):
            return self._outcome(variant, BROKEN, f"{self.metric} is {estimate.value}, which is no measurement")
        if self.required:
            return self._outcome(variant, *self._required(estimate))
        if self.p_below is not None:
            return self._outcome(variant, *self._tested(estimate, variant.p_values.get(self.metric)))
        beyond = self._holds(estimate.value)
        return self._outcome(variant, BROKEN if beyond else KEPT, self._measured(estimate) if beyond else "")

    def _outcome(self, variant: Variant, status: str, reason: str) -> RuleOutcome:
        partial = variant.partial.get(self.metric)
        text = f"{reason} ({partial})" if partial and reason else partial or reason
        return RuleOutcome(self, variant.label, status, text)

    def _holds(self, value: float) -> bool:
        return _OPERATORS[self.compare](value, self.bound)

    def _decided(self, decision: Decision) -> tuple[str, str]:
        """By the sequential test of the same bound."""
        text = describe_decision(decision)
        if decision.alpha > ALPHA and decision.outcome != "undecided":
            return INCONCLUSIVE, f"{text}: a rule needs a decision at --alpha {ALPHA:g}"
        if decision.outcome == "undecided":
            return INCONCLUSIVE, text
        above = (decision.outcome == "true") == decision.compare.startswith(">")
        holds = above == self.compare.startswith(">")
        return (KEPT, "") if holds == self.required else (BROKEN, text)

    def _required(self, estimate: Estimate) -> tuple[str, str]:
        """Kept where the whole interval is on the right side of the bound, broken where none of it is."""
        low, high = estimate.low, estimate.high
        if self.metric in METRICS and not METRICS[self.metric].interval:
            low = high = estimate.value
        if low is None or high is None:
            return INCONCLUSIVE, f"{self._measured(estimate)}: too few samples for an interval"
        holds = (self._holds(low), self._holds(high))
        if all(holds):
            return KEPT, ""
        if any(holds):
            return INCONCLUSIVE, f"{self._measured(estimate)}; {self._few(estimate)} to show {self.text}"
        return BROKEN, f"{self._measured(estimate)}, and {self.text} is required"

    def _tested(self, estimate: Estimate, p: float | None) -> tuple[str, str]:
        """Broken where the value is beyond the bound and the test is significant; kept where the whole interval is not
        beyond the bound."""
        assert self.p_below is not None
        beyond = self._holds(estimate.value)
        if p is None or math.isnan(p):
            return INCONCLUSIVE, f"{self._measured(estimate)}: too few samples for a test"
        if beyond and p < self.p_below:
            return BROKEN, f"{self._measured(estimate)} with p = {p:.3g}"
        worst = estimate.high if self.compare.startswith(">") else estimate.low
        if worst is not None and not self._holds(worst):
            return KEPT, ""
        return INCONCLUSIVE, f"{self._measured(estimate)}, p = {p:.3g}; {self._few(estimate)} to rule out {self.text}"

    def _few(self, estimate: Estimate) -> str:
        """Positions of one text are not independent, so the number of texts is what counts."""
        return "the texts are too few" if self.metric in FORCED else f"n = {estimate.n} is too few"

    def _measured(self, estimate: Estimate) -> str:
        measured = (f"{self.metric} is {format_value(self.metric, estimate.value)}", format_interval(self.metric, estimate))
        text = " ".join(filter(None, measured))
        sign = f", which is {self.compare} {self.bound:g}"
        return text + (sign if not self.required and self._holds(estimate.value) else "")


def parse_rules(fail_on: str | None, require: str | None = None) -> list[Rule]:
    """The rules of both options; a rule that no value or every value would break is refused."""
    rules = []
    for option, text, required in (("--fail_on", fail_on, False), ("--require", require, True)):
        if text is None:
            continue
        parts = [part for part in text.split(",") if part.strip()]
        if not parts:
            raise SpecError(f"{option} names no rule; {_grammar(option)}")
        rules += [_parse(part, option, required) for part in parts]
    return rules


def _parse(part: str, option: str, required: bool) -> Rule:
    match = _RULE.fullmatch(part)
    if not match:
        raise SpecError(f"{option}: {part.strip()!r} is no rule; {_grammar(option)}")
    name, compare, bound, p_below = match.groups()
    if required and p_below:
        raise SpecError(
            f"{option}: {part.strip()!r} has a p-value; a requirement is decided by the interval: {name}{compare}{bound}"
        )
    try:
        rule = Rule(part.strip(), name, compare, float(bound), float(p_below) if p_below else None, required)
    except ValueError:
        raise SpecError(f"{option}: {part.strip()!r} has an invalid number") from None
    _refuse_senseless(rule, option)
    return rule


def _grammar(option: str) -> str:
    form, example = _FORMS[option]
    return f'rules are {form}, separated by commas: {option} "{example}"'


def _refuse_senseless(rule: Rule, option: str) -> None:
    """A rule whose outcome does not depend on the measured value is a mistake."""
    if rule.p_below is not None and not 0 < rule.p_below < 1:
        raise SpecError(f"{option}: {rule.text!r}: a p-value is between 0 and 1")
    info = METRICS.get(rule.metric)
    if info is None:  # check_names and judge refuse unknown names, with suggestions
        return
    if rule.p_below is not None and not info.tested:
        tested = ", ".join(name for name, metric in METRICS.items() if metric.tested)
        raise SpecError(f"{option}: {rule.text!r}: only {tested} have a p-value; leave out @p, or use --require")
    ends = [rule._holds(info.low), rule._holds(info.high)]
    if all(ends) or not any(ends):
        always = "always" if all(ends) else "never"
        raise SpecError(f"{option}: {rule.text!r} is {always} true: {rule.metric} is between {info.low:g} and {info.high:g}")


def judge(check: Check, rules: Sequence[Rule]) -> list[RuleOutcome]:
    """Every rule on every variant. An unknown metric raises; a check without variants measured nothing and breaks every
    rule."""
    known = {name for variant in check.variants for name in variant.metrics}
    for rule in rules:
        if rule.metric not in known | set(METRICS):
            raise UnknownName("metric", rule.metric, known | set(METRICS), hint=f"this check has {', '.join(sorted(known))}")
    if not check.variants:
        return [RuleOutcome(rule, "", BROKEN, "the check measured nothing") for rule in rules]
    return [rule.judge(variant) for rule in rules for variant in check.variants]


def applicable(check: Check, rules: Sequence[Rule]) -> list[Rule]:
    """The rules on metrics that a check of this kind measures: a gate may cover several kinds of checks."""
    measured = kind_of(check.command).metrics
    return [rule for rule in rules if rule.metric in measured]


def judge_all(checks: Sequence[Check], rules: Sequence[Rule]) -> list[tuple[Check, list[RuleOutcome]]]:
    """Every check with the rules for its kind. A rule for none of them is applied to all, which breaks it."""
    unused = [rule for rule in rules if not any(rule in applicable(check, rules) for check in checks)]
    return [(check, judge(check, [*applicable(check, rules), *unused])) for check in checks]


def check_names(rules: Sequence[Rule]) -> None:
    """Refuse unknown metrics before anything is computed."""
    for rule in rules:
        if rule.metric not in METRICS:
            near = nearest(rule.metric, METRICS)
            hint = "docs/checks.md lists them" if near else f"metrics of checks are {', '.join(METRICS)}"
            raise UnknownName("metric", rule.metric, METRICS, hint=hint)


def conclude(judged: Sequence[tuple[Check, Sequence[RuleOutcome]]], *, strict: bool) -> str:
    """The message if all rules are kept; raises if one is broken or inconclusive. `strict` treats inconclusive as broken."""
    reasons: dict[str, list[str]] = {KEPT: [], BROKEN: [], INCONCLUSIVE: []}
    total = sum(len(outcomes) for _, outcomes in judged)
    for check, outcomes in judged:
        for outcome in outcomes:
            status = BROKEN if strict and outcome.status == INCONCLUSIVE else outcome.status
            if outcome.reason:
                reasons[status].append(f"{check.name}: {outcome.message}" if len(judged) > 1 else outcome.message)
    if reasons[BROKEN]:
        undecided = f"; inconclusive: {'; '.join(reasons[INCONCLUSIVE])}" if reasons[INCONCLUSIVE] else ""
        raise GateFailed(
            f"{len(reasons[BROKEN])} of {counted(total, 'rule')} broken: {'; '.join(reasons[BROKEN])}{undecided}"
        )
    if reasons[INCONCLUSIVE]:
        count = len(reasons[INCONCLUSIVE])
        raise GateInconclusive(f"{count} of {counted(total, 'rule')} inconclusive: {'; '.join(reasons[INCONCLUSIVE])}")
    where = f" on {counted(len(judged), 'check')}" if len(judged) > 1 else ""
    texts = dict.fromkeys(f"{outcome.rule.option} {outcome.rule.text}" for _, outcomes in judged for outcome in outcomes)
    return f"all rules kept{where}: {', '.join(texts)}" + "".join(f"; {text}" for text in reasons[KEPT])
