"""Scores of a run: each task's metrics with their uncertainty, and what must be known beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import mill.metrics  # noqa: F401  registers the built-in metrics
from mill.api.batching import describe
from mill.api.errors import MillError, RunError
from mill.api.registry import metrics
from mill.api.response import encode_float
from mill.api.task import Benchmark, Task, Value
from mill.metrics.estimate import NOTHING, Estimate, pool
from mill.runs.folder import RESULTS, RunFolder
from mill.runs.samples import ScoredSample, metrics_of
from mill.runs.shared import Word, say, standing

MOST_LISTED = 20


@dataclass
class TaskResult:
    """`n` of `total` samples were asked; `errors` of them have no value; the metrics' own n says how many do."""

    task: str
    task_type: str
    version: int
    n_shots: int
    n: int
    total: int
    errors: int
    truncated: int
    cut_short: int
    metrics: dict[str, Estimate]
    notes: list[str] = field(default_factory=list)
    failures: list[dict[str, str]] = field(default_factory=list)
    data_hash: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "metrics": {name: _estimate_dict(value) for name, value in self.metrics.items()}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TaskResult:
        found = {name: read_estimate(value) for name, value in data["metrics"].items()}
        return cls(**{**data, "metrics": found})


@dataclass
class BenchmarkResult:
    """The mean of a benchmark's tasks for every metric that all of them have."""

    benchmark: str
    tasks: list[str]
    n: int
    total: int
    errors: int
    metrics: dict[str, Estimate]

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "metrics": {name: _estimate_dict(value) for name, value in self.metrics.items()}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> BenchmarkResult:
        return cls(**{**data, "metrics": {name: read_estimate(value) for name, value in data["metrics"].items()}})


def summarize(task: Task, scored: Sequence[ScoredSample], *, n_shots: int, total: int, data_hash: str) -> TaskResult:
    good = [one for one in scored if one.error is None]
    failures = [{"id": one.record.sample.id, "error": one.error} for one in scored if one.error is not None]
    return TaskResult(
        task=task.name,
        task_type=task.task_type.value,
        version=task.version,
        n_shots=n_shots,
        n=len(scored),
        total=total,
        errors=len(failures),
        truncated=sum(one.record.truncated for one in scored),
        cut_short=sum(one.record.cut_short for one in scored),
        metrics={name: _estimate(name, how, _valued(good, name)) for name, how in _metrics(task, good).items()},
        failures=failures[:MOST_LISTED],
        data_hash=data_hash,
    )


def _metrics(task: Task, scored: Sequence[ScoredSample]) -> dict[str, str]:
    return metrics_of(task, (one.record for one in scored))


def _estimate(name: str, how: str, values: Sequence[list[Value]]) -> Estimate:
    """A metric of no samples is no number, whoever wrote it."""
    if not values:
        return NOTHING
    try:
        found: Estimate = metrics.get(how)(values)
    except MillError:
        raise
    except Exception as error:
        raise RunError(f"the metric {how} of {name} raised {describe(error)}") from error
    return found


def _valued(scored: Sequence[ScoredSample], metric: str) -> list[list[Value]]:
    """The values of samples that have any of this metric."""
    found: Iterable[list[Value]] = ([v for v in one.values.get(metric, ()) if v is not None] for one in scored)
    return [values for values in found if values]


def write_results(folder: RunFolder, results: Sequence[TaskResult], means: Sequence[BenchmarkResult] = ()) -> set[str]:
    """Write results and say which tasks' were written: not those of which the folder has one over more samples.

    So a run with a small limit never takes the place of the full one.
    """
    known = standing(folder, RESULTS)
    earlier = {name: word.value for name, word in known.get("tasks", {}).items()}
    kept = [result for result in results if not _larger(earlier.get(result.task), result)]
    averaged = {name: word.value["n"] for name, word in known.get("benchmarks", {}).items()}
    said = {
        "tasks": {result.task: Word(result.to_dict(), weight=result.n) for result in kept},
        "benchmarks": {
            mean.benchmark: Word(mean.to_dict(), weight=mean.n)
            for mean in means
            if averaged.get(mean.benchmark, 0) <= mean.n
        },
    }
    say(folder, RESULTS, {section: words for section, words in said.items() if words})
    return {result.task for result in kept}


def _larger(earlier: Mapping[str, Any] | None, result: TaskResult) -> bool:
    """Whether an earlier result is one of the same task and data over more samples."""
    if not earlier or (earlier["data_hash"], earlier["version"]) != (result.data_hash, result.version):
        return False
    return bool(earlier["n"] > result.n)


def summarize_benchmarks(results: Mapping[str, TaskResult], benchmarks: Sequence[Benchmark]) -> list[BenchmarkResult]:
    """The means of benchmarks over the results just made, by the names the tasks were asked for."""
    lookup: dict[str, TaskResult | Benchmark] = {**results, **{entry.name: entry for entry in benchmarks}}
    return [_summarize_benchmark(entry, lookup) for entry in benchmarks]


def _summarize_benchmark(benchmark: Benchmark, lookup: Mapping[str, TaskResult | Benchmark]) -> BenchmarkResult:
    leaves = _leaves(benchmark, lookup)
    names = [name for name in leaves[0].metrics if all(name in leaf.metrics for leaf in leaves)]
    return BenchmarkResult(
        benchmark=benchmark.name,
        tasks=[leaf.task for leaf in leaves],
        n=sum(leaf.n for leaf in leaves),
        total=sum(leaf.total for leaf in leaves),
        errors=sum(leaf.errors for leaf in leaves),
        metrics={name: _pooled(benchmark, name, lookup) for name in names},
    )


def _leaves(benchmark: Benchmark, lookup: Mapping[str, TaskResult | Benchmark]) -> list[TaskResult]:
    found: list[TaskResult] = []
    for name in benchmark.tasks:
        entry = lookup[name]
        found += _leaves(entry, lookup) if isinstance(entry, Benchmark) else [entry]
    return found


def _pooled(benchmark: Benchmark, metric: str, lookup: Mapping[str, TaskResult | Benchmark]) -> Estimate:
    parts = []
    for name in benchmark.tasks:
        entry = lookup[name]
        parts.append(_pooled(entry, metric, lookup) if isinstance(entry, Benchmark) else entry.metrics[metric])
    return pool(parts, weighted=benchmark.weighted)


def _estimate_dict(estimate: Estimate) -> dict[str, Any]:
    return {name: encode_float(value) if isinstance(value, float) else value for name, value in asdict(estimate).items()}


def read_estimate(data: Mapping[str, Any]) -> Estimate:
    def read(name: str) -> float | None:
        return None if data[name] is None else float(data[name])

    return Estimate(float(data["value"]), read("stderr"), read("low"), read("high"), int(data["n"]))
