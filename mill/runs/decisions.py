"""A claim about a score, tested after each block of samples in a random order until it is decided."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from mill.api.errors import RunError
from mill.api.task import Value
from mill.execute.sample_state import SampleState
from mill.metrics.sequential import Decider
from mill.runs.claims import Claim
from mill.runs.samples import ScoredSample
from mill.runs.schema import Decision, Look
from mill.runs.stages import Estimates, GroupOrder, Scores, Stages

FIRST_BLOCK = 200  # samples before the first look
LEAST_BLOCK = 100
GROWTH = 4  # a block is at least the samples so far divided by this
DROPS = ("acc_drop", "score_drop")  # the claims about two models


@dataclass
class GroupTest:
    """The sequential test of one group."""

    decider: Decider | None = None
    failed: int = 0
    looks: list[Look] = field(default_factory=list)
    block: list[SampleState] = field(default_factory=list)

    def add(self, values: Sequence[float], failed: int) -> None:
        """The values of a block, of which some stand for samples that failed."""
        assert self.decider is not None
        self.failed += failed
        self.decider.update(values)
        low, high = self.decider.interval
        self.looks.append(Look(self.decider.n, self.decider.value, low, high))

    @property
    def over(self) -> bool:
        """Whether the claim is decided, or every sample failed."""
        return self.decider is not None and (self.decider.decision is not None or self.failed == self.decider.n)


class DecisionStages(Stages):
    """Samples in a uniformly random order until a claim about the mean of a metric is decided. A failed sample counts as the
    smallest value."""

    def __init__(self, orders: Sequence[GroupOrder], claim: Claim) -> None:
        super().__init__(orders)
        self.claim = claim
        self._tests = [GroupTest() for _ in orders]

    def start(self) -> list[int]:
        return [min(order.total, FIRST_BLOCK) for order in self.orders]

    def take(self, counts: Sequence[int]) -> list[SampleState]:
        for order, test, count in zip(self.orders, self._tests, counts, strict=True):
            test.block = order.take(count)
        return [state for test in self._tests for state in test.block]

    def following(self, scores: Scores, estimates: Estimates) -> list[int]:
        return [self._test(order, test, scores) for order, test in zip(self.orders, self._tests, strict=True)]

    def _test(self, order: GroupOrder, test: GroupTest, scores: Scores) -> int:
        if not test.block or any(state.open_requests() for state in test.block):
            return 0  # a part that is not complete is not tested: it has what happened to finish first
        values = [metric_value(one, self.claim.metric) for one in scores(test.block)]
        numbers = [0.0 if value is None else value for value in values]
        if test.decider is None:
            test.decider = self._decider(order, numbers)
        test.add(numbers, values.count(None))
        return 0 if test.over else min(order.total - order.used, next_block(order.used))

    def _decider(self, order: GroupOrder, values: Sequence[float]) -> Decider:
        claim, binary = self.claim, all(value in (0.0, 1.0) for value in values)
        if not all(0 <= value <= 1 for value in values):
            worst = max(values, key=lambda value: abs(value - 0.5))
            raise RunError(f"--decide is for metrics between 0 and 1: {claim.metric} of {order.group.name} has {worst:g}")
        return Decider(claim.bound, claim.compare, order.total, alpha=claim.alpha, binary=binary)

    def decisions(self) -> dict[str, Decision]:
        found = {}
        for order, test in zip(self.orders, self._tests, strict=True):
            found[order.group.name] = decision_of(order.group.name, self.claim, test, order.total)
        return found


def decision_of(name: str, claim: Claim, test: GroupTest, total: int) -> Decision:
    """The outcome of a test. One that needed all samples is undecided: their mean is known, but the test found nothing. So
    is one of which every sample failed, and a low score that failed samples, which count as wrong, may explain."""
    decider = test.decider
    n = decider.n if decider is not None else 0
    answer = decider.decision if decider is not None and test.failed < n < total else None
    if answer and test.failed and claim.compare.startswith("<") and claim.metric not in DROPS:
        answer = None
    reached = None
    if decider is not None and answer is not None:
        reached = decider.one_sided[0 if answer == claim.compare.startswith(">") else 1]
    outcome: Literal["true", "false", "undecided"] = "undecided" if answer is None else "true" if answer else "false"
    return Decision(
        name, claim.metric, claim.compare, claim.bound, claim.alpha, outcome, n, total, test.failed, reached, test.looks
    )


def describe_decision(decision: Decision) -> str:
    """A decision in plain words."""
    failed = f"; {decision.failed} failed samples count as wrong" if decision.failed else ""
    last = decision.looks[-1] if decision.looks else None
    share = f"{decision.n:,} of {decision.total:,} samples"
    if last is None:
        return f"{decision.claim} is undecided: the first {min(FIRST_BLOCK, decision.total)} samples are not complete"
    if decision.outcome == "undecided":
        if decision.failed and float(last.high) < decision.bound:
            retry = "failed samples count as wrong and may be why: the same command runs them again"
            score = f"{decision.metric} is at most {float(last.high):.4g}"
            return f"{decision.claim} is undecided after {share}: {score}, but {decision.failed} {retry}"
        if decision.n < decision.total:
            found = f"{decision.metric} is between {float(last.low):.4g} and {float(last.high):.4g}"
            return f"{decision.claim} is undecided after {share}: {found}{failed}"
        value = f"{decision.metric} is {float(last.value):.4g} on all {decision.total:,} samples"
        return f"{decision.claim} is undecided: {value}, and no part of them was enough for a test to show more{failed}"
    above = (decision.outcome == "true") == decision.compare.startswith(">")
    side = f"{decision.metric} is {'at least' if above else 'at most'} {float(decision.reached or 0.0):.4g}"
    saved = round(100 * (1 - decision.n / decision.total))
    wrong = f"such a decision is wrong in at most {100 * decision.alpha:g} % of cases"
    needed = f"Decided after {share}, the other {saved} % were not needed"
    return f"{decision.claim} is {decision.outcome}: {side}. {needed}; {wrong}{failed}"


def metric_value(scored: ScoredSample, metric: str) -> float | None:
    """The mean over the repeats of a sample; None where it failed."""
    if scored.error is not None:
        return None
    if metric not in scored.values:
        known = ", ".join(scored.values) or "none"
        raise RunError(f"sample {scored.record.sample.id} has no value of {metric}: its metrics are {known}")
    values = [_number(value, metric) for value in scored.values[metric] if value is not None]
    return math.fsum(values) / len(values) if values else None


def _number(value: Value, metric: str) -> float:
    if not isinstance(value, (int, float)):
        raise RunError(f"the values of {metric} are no plain numbers: --decide needs a mean of such")
    return float(value)


def next_block(used: int) -> int:
    """Larger blocks share more computation, and a decision comes at most so much later."""
    return max(LEAST_BLOCK, used // GROWTH)
