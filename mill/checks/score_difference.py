"""One score of two runs: by how much it differs, over pairs of samples where both runs have them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mill.checks.pairing import Pairs, pair
from mill.metrics.aggregate import bits_per_unit, perplexity
from mill.metrics.differences import (
    FAILED,
    Difference,
    Value,
    direction,
    negated,
    paired_loss,
    perplexity_difference,
    pooled_difference,
    unpaired_difference,
    valued_pairs,
)
from mill.metrics.estimate import Estimate, mean_of, pool
from mill.metrics.finite_population import Stratum, stratified_mean
from mill.score.recorded_run import RecordedRun
from mill.store.sample_row import PENDING, Number, SampleRow
from mill.store.schema import BenchmarkResult

MOST_SAMPLES = 200_000  # in memory
_AS_RECORDED = 1e-6  # relative: results.json has the whole float
MEAN = "mean"
RATIOS = {"perplexity": perplexity, "bits_per_unit": bits_per_unit}


@dataclass(frozen=True)
class ScoreDifference:
    """Second minus first run. `pairs` is the number of samples that both runs have a value of; 0 where the test is that of
    two independent estimates. `values` are those of the pairs alone."""

    difference: Difference
    pairs: int = 0
    values: tuple[float, float] | None = None


class ValueCache:
    """The samples of runs, each file read once; the oldest are dropped where there are many."""

    def __init__(self, most: int = MOST_SAMPLES) -> None:
        self._most, self._count = most, 0
        self._known: dict[tuple[Path, str], list[SampleRow]] = {}

    def rows(self, run: RecordedRun, task: str) -> list[SampleRow]:
        key = (run.path, task)
        found = self._known.pop(key, None)
        if found is None:
            found = [row for row in run.light_rows(task) if row.status != PENDING]
            self._count += len(found)
            while self._known and self._count > self._most:
                self._count -= len(self._known.pop(next(iter(self._known))))
        self._known[key] = found
        return found


class PairedRuns:
    """Two runs with the samples that both have."""

    def __init__(self, first: RecordedRun, second: RecordedRun, cache: ValueCache) -> None:
        self.first, self.second, self._cache = first, second, cache
        self._last: tuple[str, Pairs[SampleRow]] | None = None

    def matches(self, task: str) -> Pairs[SampleRow]:
        if self._last is None or self._last[0] != task:  # those of one task at a time: there may be many samples
            sides = [self._cache.rows(run, task) for run in (self.first, self.second)]
            self._last = task, pair(sides[0], sides[1])
        return self._last[1]

    def difference(self, name: str, metric: str, *, same_samples: bool = False) -> ScoreDifference | None:
        """Of a task or benchmark; None where one of the runs has no such score. With `same_samples` pairs count only where
        both runs have the same samples, so that the difference is that of the two recorded scores."""
        estimates = [run.estimate(name, metric) for run in (self.first, self.second)]
        if estimates[0] is None or estimates[1] is None:
            return None
        results = [run.result(name) for run in (self.first, self.second)]
        if isinstance(results[0], BenchmarkResult) or isinstance(results[1], BenchmarkResult):
            paired = self._benchmark(name, metric, same_samples=same_samples)
        else:
            paired = self._task(name, metric, same_samples=same_samples)
        unpaired = ScoreDifference(unpaired_difference(estimates[0], estimates[1]))
        if paired is not None and math.isnan(paired.difference.estimate.value):
            return paired  # a failed sample, whose value is unknown
        if paired is None or math.isnan(paired.difference.p):
            return unpaired
        if all(run.is_random_sample(name) for run in (self.first, self.second)):
            errors = [one.difference.estimate.stderr for one in (unpaired, paired)]  # they may have few samples in common
            if errors[0] is not None and errors[1] is not None and errors[0] < errors[1]:
                return unpaired
        return paired

    def _task(self, task: str, metric: str, *, same_samples: bool) -> ScoreDifference | None:
        """None where no pairs have values, or where those are not what the recorded score is the mean of."""
        matches = self.matches(task)
        if same_samples and matches.unpaired:
            return None
        pairs = valued_pairs([(_counts(a, metric), _counts(b, metric)) for a, b in matches.pairs], better=direction(metric))
        plain = [(a, b) for a, b in pairs if isinstance(a, float) and isinstance(b, float)]
        ratios = [(a, b) for a, b in pairs if isinstance(a, tuple) and isinstance(b, tuple)]
        recorded = [self._recorded_as(run, task, metric) for run in (self.first, self.second)]
        if not pairs or recorded[0] != recorded[1] or recorded[0] is None:
            return None
        if recorded[0] == MEAN and len(plain) == len(pairs):
            sides = [mean_of(side).value for side in zip(*plain, strict=True)]
            return ScoreDifference(negated(paired_loss(plain)), len(pairs), (sides[0], sides[1]))
        if recorded[0] in RATIOS and len(ratios) == len(pairs):
            of = RATIOS[recorded[0]]
            first, second = (of([[one] for one in side]).value for side in zip(*ratios, strict=True))
            return ScoreDifference(perplexity_difference(ratios, of), len(pairs), (first, second))
        return None

    def _recorded_as(self, run: RecordedRun, task: str, metric: str) -> str | None:
        """How the recorded score comes from the values of its samples; None where it does in none of the known ways."""
        known = ((row.category or "", row.number(metric)) for row in self._cache.rows(run, task))
        values = [(category, value) for category, value in known if value is not None]
        found = _aggregation([value for _, value in values], run.estimate(task, metric))
        return MEAN if found is None and _is_stratified(run, task, metric, values) else found

    def _benchmark(self, name: str, metric: str, *, same_samples: bool) -> ScoreDifference | None:
        """The mean of its tasks' differences, where both runs have the same tasks and a plain or weighted mean of them."""
        tasks = self.first.tasks_of(name)
        if set(tasks) != set(self.second.tasks_of(name)):
            return None
        weighted = _is_weighted(self.first, name, metric, tasks), _is_weighted(self.second, name, metric, tasks)
        if weighted[0] is None or weighted[0] != weighted[1]:
            return None
        found = [self._task(task, metric, same_samples=same_samples) for task in tasks]
        parts = [part for part in found if part is not None]
        n = sum(part.pairs for part in parts)
        if len(parts) < len(tasks):
            return None
        weights = [part.pairs / n if weighted[0] else 1 / len(parts) for part in parts]
        pooled = pooled_difference([(weight, part.difference) for weight, part in zip(weights, parts, strict=True)])
        first, second = (
            math.fsum(
                weight * (part.values or (math.nan, math.nan))[side] for weight, part in zip(weights, parts, strict=True)
            )
            for side in (0, 1)
        )
        return ScoreDifference(pooled, n, (first, second))


def _counts(row: SampleRow, metric: str) -> Value:
    return FAILED if row.error else row.number(metric)


def _aggregation(values: Sequence[Number], recorded: Estimate | None) -> str | None:
    if recorded is None or not values:
        return None
    numbers = [value for value in values if isinstance(value, float)]
    if len(numbers) == len(values):
        return MEAN if _equal(mean_of(numbers).value, recorded.value) else None
    ratios = [value for value in values if isinstance(value, tuple)]
    if len(ratios) < len(values):
        return None
    return next((name for name, of in RATIOS.items() if _equal(of([[one] for one in ratios]).value, recorded.value)), None)


def _is_stratified(run: RecordedRun, task: str, metric: str, values: Sequence[tuple[str, Number]]) -> bool:
    """Whether the recorded score is the mean of a random sample with its categories weighted by their sizes. Over pairs of
    samples it is compared by plain means."""
    result, recorded = run.results.tasks.get(task), run.estimate(task, metric)
    if result is None or recorded is None or not run.is_random_sample(task) or result.sampled is None:
        return False
    groups: dict[str, list[float]] = {category: [] for category in result.sampled.strata}
    for category, value in values:
        if not isinstance(value, float) or category not in groups:
            return False
        groups[category].append(value)
    strata = [Stratum(of_one, result.sampled.strata[category]) for category, of_one in groups.items()]
    return bool(values) and _equal(stratified_mean(strata).value, recorded.value)


def _is_weighted(run: RecordedRun, name: str, metric: str, tasks: Sequence[str]) -> bool | None:
    """Whether the mean of a benchmark weights its tasks by their samples, or by their sizes where random samples ran; None
    where it is neither that nor plain."""
    recorded, parts = run.estimate(name, metric), [run.estimate(task, metric) for task in tasks]
    known = [part for part in parts if part is not None and part.n]
    if recorded is None or len(known) < len(tasks):
        return None
    if run.is_random_sample(name):
        sizes = [run.results.tasks[task].total for task in tasks]
        by_size = math.fsum(size * part.value for size, part in zip(sizes, known, strict=True)) / sum(sizes)
        if _equal(by_size, recorded.value):
            return True
    return next((how for how in (True, False) if _equal(pool(known, weighted=how).value, recorded.value)), None)


def _equal(value: float, recorded: float) -> bool:
    return math.isclose(value, recorded, rel_tol=_AS_RECORDED, abs_tol=1e-9)
