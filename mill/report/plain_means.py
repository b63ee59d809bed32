"""Runs of random samples with plain means as scores, as pairs of samples need them.

The recorded score of a stratified sample weights its categories by their sizes, and that of a benchmark its tasks. A
difference over the samples that two runs share is one of plain means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from mill.checks.score_difference import ValueCache
from mill.metrics.estimate import Estimate, pool
from mill.metrics.finite_population import Stratum, stratified_mean
from mill.metrics.paired import mean_of
from mill.runs.recorded_run import RecordedRun
from mill.runs.sample_values import SampleValues
from mill.runs.sampling import is_random
from mill.runs.schema import BenchmarkResult, Results, TaskResult

_AS_RECORDED = 1e-6  # relative


def is_random_sample(run: RecordedRun, name: str) -> bool:
    """Whether a random sample ran of a task, or of one of a benchmark's tasks."""
    found = (run.results.tasks.get(task) for task in run.tasks_of(name))
    return any(task is not None and task.sampled is not None and is_random(task.sampled) for task in found)


def with_plain_means(run: RecordedRun, cache: ValueCache, name: str = "") -> RecordedRun:
    """The run, with the plain mean instead of every score that is a weighted one; of one task or benchmark, or of all."""
    chosen = run.tasks_of(name) if name else list(run.results.tasks)
    if not any(is_random_sample(run, task) for task in chosen):
        return run
    tasks = {
        task: _plain_task(result, cache.values(run, task)) if task in chosen and is_random_sample(run, task) else result
        for task, result in run.results.tasks.items()
    }
    benchmarks = {
        benchmark: _plain_benchmark(mean, run.results.tasks, tasks) if is_random_sample(run, benchmark) else mean
        for benchmark, mean in run.results.benchmarks.items()
    }
    return replace(run, results=Results(tasks, benchmarks))


def _plain_task(task: TaskResult, samples: list[SampleValues]) -> TaskResult:
    sizes = task.sampled.strata if task.sampled is not None else {}
    metrics = {metric: _plain_mean(metric, one, samples, sizes) for metric, one in task.metrics.items()}
    return replace(task, metrics=metrics)


def _plain_mean(metric: str, recorded: Estimate, samples: list[SampleValues], sizes: Mapping[str, int]) -> Estimate:
    """The recorded score where that is no stratified mean."""
    groups: dict[str, list[float]] = {category: [] for category in sizes}
    for sample in samples:
        value = sample.values.get(metric)
        if isinstance(value, float) and sample.category in groups:
            groups[sample.category].append(value)
    values = [value for group in groups.values() for value in group]
    if not values:
        return recorded
    weighted = stratified_mean([Stratum(group, sizes[category]) for category, group in groups.items()])
    return mean_of(values) if _equal(weighted.value, recorded.value) else recorded


def _plain_benchmark(
    mean: BenchmarkResult, recorded: Mapping[str, TaskResult], plain: Mapping[str, TaskResult]
) -> BenchmarkResult:
    return replace(mean, metrics={name: _pooled(name, one, mean, recorded, plain) for name, one in mean.metrics.items()})


def _pooled(
    metric: str,
    known: Estimate,
    mean: BenchmarkResult,
    recorded: Mapping[str, TaskResult],
    plain: Mapping[str, TaskResult],
) -> Estimate:
    """The mean of the tasks' plain means, where the recorded one weights all tasks by their sizes, or none."""
    tasks = [name for name in mean.tasks if name in recorded and metric in recorded[name].metrics]
    tasks = [name for name in tasks if recorded[name].metrics[metric].n]
    for weighted in (True, False):
        sizes = [recorded[name].total if weighted else 1 for name in tasks]
        parts = [size * recorded[name].metrics[metric].value for size, name in zip(sizes, tasks, strict=True)]
        if sizes and _equal(math.fsum(parts) / sum(sizes), known.value):
            return pool([plain[name].metrics[metric] for name in tasks], weighted=weighted)
    return known


def _equal(value: float, recorded: float) -> bool:
    return math.isclose(value, recorded, rel_tol=_AS_RECORDED, abs_tol=1e-9)
