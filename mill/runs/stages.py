"""Runs that take their samples one part after another, such as until an interval is narrow enough.

Every part is complete before the next one is chosen, so that nothing depends on which responses arrived first.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mill.api.errors import SpecError
from mill.api.task import Task
from mill.execute.sample_state import SampleState
from mill.metrics.estimate import Estimate
from mill.metrics.finite_population import planned_size
from mill.runs.sampled_estimates import MEAN, OWN
from mill.runs.samples import RunSample
from mill.runs.sampling import LEAST, SampleGroup, random_order, stratified_order
from mill.runs.schema import Decision
from mill.runs.task_plan import TaskPlan

Scores = Callable[[Sequence[SampleState]], list[RunSample]]
"""Scores samples that have their responses."""
Estimates = Callable[[], Mapping[str, Mapping[str, Estimate]]]
"""The metrics of each task and benchmark over the samples so far, by the names that the user gave."""


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
    """`start` and `following` decide how many samples of each group are next; `take` gives them. Only the process that has
    all responses decides; the others take as many."""

    def __init__(self, orders: Sequence[GroupOrder]) -> None:
        self.orders = orders

    @abstractmethod
    def start(self) -> list[int]:
        """How many samples of each group are first."""

    @abstractmethod
    def following(self, scores: Scores, estimates: Estimates) -> list[int]:
        """How many samples of each group are next, once those before have their responses; zeros at the end."""

    def take(self, counts: Sequence[int]) -> list[SampleState]:
        return [state for order, count in zip(self.orders, counts, strict=True) for state in order.take(count)]

    def decisions(self) -> dict[str, Decision]:
        """What was decided, by group."""
        return {}

    def reached(self) -> dict[str, str]:
        """How precise the scores are, by group, where that was the goal."""
        return {}


class PrecisionStages(Stages):
    """A random sample that is planned for the worst case, and extended where its interval is too wide."""

    def __init__(self, orders: Sequence[GroupOrder], half_width: float) -> None:
        super().__init__(orders)
        self.half_width = half_width
        self._reached: dict[str, float] = {}

    def start(self) -> list[int]:
        return [self._planned(order) for order in self.orders]

    def _planned(self, order: GroupOrder) -> int:
        planned = planned_size(order.total, self.half_width)
        least = LEAST * len(order.group.tasks)
        return min(order.total, max(planned, least))

    def following(self, scores: Scores, estimates: Estimates) -> list[int]:
        known = estimates()
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
