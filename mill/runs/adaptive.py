"""Runs that take their samples one part after another, until an interval is narrow enough or a claim is decided.

Every part is complete before the next one is chosen, so that nothing depends on which responses arrived first.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from mill.api.errors import RunError, SpecError
from mill.api.task import Task
from mill.execute.sample_state import SampleState
from mill.metrics.estimate import Estimate
from mill.metrics.finite_population import planned_size
from mill.metrics.sequential import Decider
from mill.plan.sampling import LEAST, Claim, SampleGroup, random_order, stratified_order
from mill.plan.task_plan import TaskPlan
from mill.score.results import MEAN, OWN
from mill.store.samples import RunSample
from mill.store.schema import Decision, Look

if TYPE_CHECKING:
    from mill.runs.evaluate import Run
    from mill.score.run_scores import RunScores

FIRST_BLOCK = 200  # samples before the first look
LEAST_BLOCK = 100
GROWTH = 4  # a block is at least the samples so far divided by this
Range = tuple[float, float]
"""The smallest and the largest value that a sample may have. They differ only where it failed."""
UNIT: Range = (0.0, 1.0)


@dataclass
class GroupOrder:
    """The samples of a task or benchmark in the order in which they are taken."""

    group: SampleGroup
    order: Sequence[tuple[TaskPlan, SampleState]]
    used: int = 0

    @property
    def total(self) -> int:
        return len(self.order)

    def take(self, count: int) -> list[SampleState]:
        """The next samples."""
        block = self.order[self.used : self.used + count]
        self.used += len(block)
        return [state for _, state in block]


class Stages(ABC):
    """`start` and `following` decide how many samples of each group are next; `take` gives them."""

    def __init__(self, orders: Sequence[GroupOrder]) -> None:
        self.orders = orders

    @abstractmethod
    def start(self) -> list[int]:
        """How many samples of each group are first."""

    @abstractmethod
    def following(self, scores: RunScores) -> list[int]:
        """How many samples of each group are next, once those before have their responses; zeros at the end."""

    def take(self, counts: Sequence[int]) -> list[SampleState]:
        return [state for order, count in zip(self.orders, counts, strict=True) for state in order.take(count)]

    def decisions(self) -> list[Decision]:
        return []

    def reached(self) -> dict[str, str]:
        """How precise the scores are, by group, where that was the goal."""
        return {}


def answer_in_stages(run: Run, stages: Stages) -> None:
    """Answer one part of the samples after another. All ranks take the same parts; the first, which has all responses,
    decides which."""
    counts = stages.start()
    while block := stages.take(counts):
        run.answer(block)
        following = [0] * len(counts)
        if run.first and not run.meter.stopped:  # at the end of a budget there are no more
            following = stages.following(run.scores)
        counts = run.exchange(following)[0]
    run.decisions, run.precision = stages.decisions(), stages.reached()


class PrecisionStages(Stages):
    """A random sample that is planned for the worst case, and extended where its interval is too wide."""

    def __init__(self, orders: Sequence[GroupOrder], half_width: float) -> None:
        super().__init__(orders)
        self.half_width = half_width
        self._reached: dict[str, float] = {}

    def start(self) -> list[int]:
        planned = [planned_size(order.total, self.half_width) for order in self.orders]
        least = [min(order.total, LEAST * len(order.group.tasks)) for order in self.orders]
        return list(map(max, planned, least))

    def following(self, scores: RunScores) -> list[int]:
        known = scores.estimates()
        return [self._more(order, known.get(order.group.name, {})) for order in self.orders]

    def _more(self, order: GroupOrder, metrics: Mapping[str, Estimate]) -> int:
        estimate = next(iter(metrics.values()), None)
        if estimate is None or estimate.low is None or estimate.high is None:
            return order.total - order.used
        half = self._reached[order.group.name] = (estimate.high - estimate.low) / 2
        if half <= self.half_width or order.used == order.total:
            return 0
        # The squared width is proportional to 1/n - 1/N.
        rest = 1 / order.used - 1 / order.total
        needed = 1 / ((self.half_width / half) ** 2 * rest + 1 / order.total)
        return min(order.total - order.used, max(1, math.ceil(needed) - order.used))

    def reached(self) -> dict[str, str]:
        return {order.group.name: self._describe(order) for order in self.orders}

    def _describe(self, order: GroupOrder) -> str:
        if order.used == order.total:
            return f"all {order.total:,} samples were needed for ±{self.half_width:g}"
        half, saved = self._reached.get(order.group.name), round(100 * (1 - order.used / order.total))
        if half is None or half > self.half_width:
            done = sum(not state.open_requests() for _, state in order.order[: order.used])
            return f"±{self.half_width:g} is not reached: {done:,} of {order.used:,} samples that it may need are done"
        share = f"{order.used:,} of {order.total:,} samples"
        return f"±{half:.2g} with {share}, {saved} % did not run (±{self.half_width:g} was to be reached)"


@dataclass
class GroupTest:
    """The sequential test of one group. It is two tests: one takes the smallest value for each failed sample, the other the
    largest. What both decide holds for any scores of the failed samples.

    A larger value is never evidence of a smaller mean, so each test is valid for its side of the bound whichever samples
    failed, and why.
    """

    claim: Claim
    total: int
    limits: Range = UNIT
    failed: int = 0
    looks: list[Look] = field(default_factory=list)
    _tests: Sequence[Decider] = ()
    _sum: float = 0.0

    def add(self, block: Sequence[Range]) -> None:
        """Test the claim after the samples of another block."""
        sides = list(zip(*block, strict=True))
        if not self._tests:
            self._tests = [self._start(sides[0]) for _ in sides]
        for test, values in zip(self._tests, sides, strict=True):
            test.update(values)
        answered = [low for low, high in block if low == high]
        self.failed += len(block) - len(answered)
        self._sum += math.fsum(answered)
        least, most = self._tests
        value = self._sum / (least.n - self.failed) if self.failed < least.n else math.nan
        self.looks.append(Look(least.n, value, least.interval[0], most.interval[1]))

    def _start(self, values: Sequence[float]) -> Decider:
        claim, binary = self.claim, self.limits == UNIT and all(value in UNIT for value in values)
        return Decider(claim.bound, claim.compare, self.total, alpha=claim.alpha, limits=self.limits, binary=binary)

    @property
    def n(self) -> int:
        return self.looks[-1].n if self.looks else 0

    @property
    def over(self) -> bool:
        """Whether the claim is decided, the answer depends on the failed samples, or every sample failed."""
        return self.failed == self.n or all(test.decision is not None for test in self._tests)

    def decision(self, name: str) -> Decision:
        """The outcome. A test that needed all samples is undecided: their mean is known, but the test found nothing."""
        claim, answers = self.claim, {test.decision for test in self._tests}
        answer = answers.pop() if len(answers) == 1 and self.failed < self.n < self.total else None
        reached = None
        if answer is not None:
            least, most = (test.one_sided for test in self._tests)
            reached = least[0] if answer == claim.compare.startswith(">") else most[1]
        outcome: Literal["true", "false", "undecided"] = "undecided" if answer is None else "true" if answer else "false"
        terms = (name, claim.metric, claim.compare, claim.bound, claim.alpha)
        return Decision(*terms, outcome, self.n, self.total, self.failed, reached, self.looks)


class DecisionStages(Stages):
    """Samples in a uniformly random order until a claim about the mean of a metric is decided."""

    def __init__(self, orders: Sequence[GroupOrder], claim: Claim) -> None:
        super().__init__(orders)
        self.claim = claim
        self._tests = [GroupTest(claim, order.total) for order in orders]
        self._blocks: list[list[SampleState]] = [[] for _ in orders]

    def start(self) -> list[int]:
        return [min(order.total, FIRST_BLOCK) for order in self.orders]

    def take(self, counts: Sequence[int]) -> list[SampleState]:
        self._blocks = [order.take(count) for order, count in zip(self.orders, counts, strict=True)]
        return [state for block in self._blocks for state in block]

    def following(self, scores: RunScores) -> list[int]:
        return [self._test(*group, scores) for group in zip(self.orders, self._tests, self._blocks, strict=True)]

    def _test(self, order: GroupOrder, test: GroupTest, block: Sequence[SampleState], scores: RunScores) -> int:
        if not block or any(state.open_requests() for state in block):
            return 0  # a part that is not complete is not tested: it has what happened to finish first
        test.add([value_range(one, self.claim.metric) for one in scores.score_states(block)])
        return 0 if test.over else min(order.total - order.used, next_block(order.used))

    def decisions(self) -> list[Decision]:
        return [test.decision(order.group.name) for order, test in zip(self.orders, self._tests, strict=True)]


def decide_again(decision: Decision, samples: Sequence[RunSample]) -> Decision:
    """The same test of samples that were scored again, in the order in which they were taken."""
    claim, start = Claim(decision.metric, decision.compare, decision.bound, decision.alpha), 0
    test = GroupTest(claim, decision.total)
    for look in decision.looks:
        test.add([value_range(one, claim.metric) for one in samples[start : look.n]])
        start = look.n
    return test.decision(decision.of)


def describe_decision(decision: Decision) -> str:
    """A decision in plain words."""
    failed = f"; {decision.failed:,} samples failed" if decision.failed else ""
    last = decision.looks[-1] if decision.looks else None
    share = f"{decision.n:,} of {decision.total:,} samples"
    if last is None:
        return f"{decision.claim} is undecided: the first {min(FIRST_BLOCK, decision.total)} samples are not complete"
    if decision.outcome == "undecided":
        between = f"{decision.metric} is between {float(last.low):.4g} and {float(last.high):.4g}"
        if decision.failed:
            known = f"{between} for any scores of the {decision.failed:,} failed samples"
            return f"{decision.claim} is undecided after {share}: {known}; the same command runs them again"
        if decision.n < decision.total:
            return f"{decision.claim} is undecided after {share}: {between}"
        value = f"{decision.metric} is {float(last.value):.4g} on all {decision.total:,} samples"
        return f"{decision.claim} is undecided: {value}, and no part of them was enough for a test to show more"
    above = (decision.outcome == "true") == decision.compare.startswith(">")
    side = f"{decision.metric} is {'at least' if above else 'at most'} {float(decision.reached or 0.0):.4g}"
    saved = round(100 * (1 - decision.n / decision.total))
    wrong = f"such a decision is wrong in at most {100 * decision.alpha:g} % of cases"
    needed = f"Decided after {share}, the other {saved} % were not needed"
    return f"{decision.claim} is {decision.outcome}: {side}. {needed}; {wrong}{failed}"


def value_range(scored: RunSample, metric: str) -> Range:
    """The mean over the repeats of a sample, which must be between 0 and 1. A sample that failed may have any value."""
    if scored.error is not None:
        return UNIT
    sample = scored.sample.id
    if metric not in scored.values:
        known = ", ".join(scored.values) or "none"
        raise RunError(f"sample {sample} has no value of {metric}: its metrics are {known}")
    values = [value for value in scored.values[metric] if value is not None]
    numbers = [float(value) for value in values if isinstance(value, (int, float))]
    if len(numbers) < len(values):
        raise RunError(f"the values of {metric} are no plain numbers: --decide needs a mean of such")
    if not numbers:
        raise RunError(
            f"--decide needs a score of every sample: {sample} has none of {metric}, as rows without an answer do"
        )
    mean = math.fsum(numbers) / len(numbers)
    if not 0 <= mean <= 1:
        raise RunError(f"--decide is for metrics between 0 and 1: {metric} of sample {sample} is {mean:g}")
    return mean, mean


def next_block(used: int) -> int:
    """Larger blocks share more computation, and a decision comes at most so much later."""
    return max(LEAST_BLOCK, used // GROWTH)


def make_orders(
    groups: Sequence[SampleGroup], plans: Sequence[TaskPlan], seed: int, *, stratified: bool
) -> list[GroupOrder]:
    by_name = {plan.requested: plan for plan in plans}
    draw = stratified_order if stratified else random_order
    orders = []
    for group in groups:
        members = {name: (by_name[name].task, [state.sample for state in by_name[name].states]) for name in group.tasks}
        orders.append(
            GroupOrder(group, [(by_name[name], by_name[name].states[index]) for name, index in draw(members, seed)])
        )
    return orders


def with_positions(plans: Sequence[TaskPlan], orders: Sequence[GroupOrder]) -> list[TaskPlan]:
    """The plans, with the position of each sample in the order of its group."""
    positions: dict[str, dict[str | int, int]] = {plan.requested: {} for plan in plans}
    for order in orders:
        for position, (plan, state) in enumerate(order.order):
            positions[plan.requested][state.sample.id] = position
    return [replace(plan, positions=positions[plan.requested]) for plan in plans]


def refuse_metric(task: Task, metric: str | None) -> None:
    """Refuse tasks whose metric is no mean, before anything runs. `metric` is that of a claim, or None for the first one."""
    if not task.metrics and task.open_metrics:
        return  # known after scoring
    name = next(iter(task.metrics), "") if metric is None else metric
    option = "--precision" if metric is None else f"--decide: {metric}"
    if name not in task.metrics:
        raise SpecError(f"{option}: {task.name} has no such metric: its metrics are {', '.join(task.metrics)}")
    if task.metrics[name] not in (MEAN, OWN):
        raise SpecError(
            f"{option}: {name} of {task.name} is no mean over samples, so a random sample gives no interval of it"
        )
