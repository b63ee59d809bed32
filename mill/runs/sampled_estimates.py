"""Estimates of a metric over all of the data, from a random sample of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mill.api.task import Task
from mill.metrics.estimate import Estimate
from mill.metrics.finite_population import Stratum, stratified_mean
from mill.runs.samples import RunSample

MEAN, OWN = "mean", ""  # how a metric is summed up: by its mean, or by the task itself


def of_sample(
    task: Task,
    name: str,
    how: str,
    plain: Estimate,
    scored: Sequence[RunSample],
    total: int,
    strata: Mapping[str, int],
) -> Estimate:
    """A mean over a random sample as an estimate of the mean over all of the data; what is no mean of numbers stays as it
    is."""
    if how not in (MEAN, OWN) or not plain.n or not math.isfinite(plain.value):
        return plain
    parts = strata_of(name, scored, total, strata)
    if parts is None:
        return plain
    if how == OWN:  # a task's own mean is recognized by its value
        average = math.fsum(value for part in parts for value in part.values) / plain.n
        if not math.isclose(average, plain.value, rel_tol=1e-9, abs_tol=1e-12):
            return plain
    return stratified_mean(parts, limits=limits_of(task, name, parts))


def limits_of(task: Task, name: str, parts: Sequence[Stratum]) -> tuple[float, float]:
    """What a task says about a metric, else 0 and 1 for values that are all inside."""
    limits = task.limits(name)
    if not all(map(math.isfinite, limits)) and all(0 <= value <= 1 for part in parts for value in part.values):
        return 0.0, 1.0
    return limits


def strata_of(metric: str, scored: Sequence[RunSample], total: int, strata: Mapping[str, int]) -> list[Stratum] | None:
    """The values of a metric by category; None where they are no plain numbers."""
    groups: dict[str, list[float]] = {category: [] for category in strata or [""]}
    for one in scored:
        values = [value for value in one.values.get(metric, ()) if value is not None]
        if not values:
            continue
        if not all(isinstance(value, (int, float)) for value in values):
            return None
        numbers = [float(value) for value in values if isinstance(value, (int, float))]
        groups.setdefault(one.category if strata else "", []).append(math.fsum(numbers) / len(numbers))
    return [Stratum(values, strata.get(category, total) if strata else total) for category, values in groups.items()]
