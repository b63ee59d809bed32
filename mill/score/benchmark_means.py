"""Means of benchmarks over the results of their tasks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from mill.api.task import Benchmark
from mill.metrics.estimate import NOTHING, Estimate, around, pool
from mill.metrics.finite_population import SampledPart, pool_random, pool_samples
from mill.plan.sampling import is_random
from mill.store.schema import BenchmarkResult, Decision, TaskResult


def summarize_benchmarks(
    results: Mapping[str, TaskResult], benchmarks: Sequence[Benchmark], decisions: Sequence[Decision] = ()
) -> list[BenchmarkResult]:
    """The means of benchmarks whose tasks all have results, by the requested names of the tasks. `decisions` are those that
    were made by tests after each block of samples."""
    known = {entry.name: entry for entry in benchmarks}
    whole = [one for one in benchmarks if (leaves := _leaf_names(one, known)) and all(leaf in results for leaf in leaves)]
    found = [_summarize_benchmark(entry, {**results, **known}, decisions) for entry in whole]
    return [result for result in found if result is not None]


def _summarize_benchmark(
    benchmark: Benchmark, lookup: Mapping[str, TaskResult | Benchmark], decisions: Sequence[Decision]
) -> BenchmarkResult | None:
    """None for one that computes its means itself and has none."""
    leaves = _leaves(benchmark, lookup)
    names = [name for name in leaves[0].metrics if all(name in leaf.metrics for leaf in leaves)]
    own = _own_means(benchmark, leaves)
    if own is not None and not own:
        return None
    result = BenchmarkResult(
        benchmark=benchmark.name,
        tasks=[leaf.task for leaf in leaves],
        n=sum(leaf.n for leaf in leaves),
        total=sum(leaf.total for leaf in leaves),
        errors=sum(leaf.errors for leaf in leaves),
        metrics={name: _pooled(benchmark, name, lookup) for name in names} if own is None else own,
        missing=[leaf.task for leaf in leaves if not _has_value(leaf, names if own is None else own)],
        unjudged={name: count for name in names if (count := sum(leaf.unjudged.get(name, 0) for leaf in leaves))},
    )
    if any(leaf.pending and not leaf.n for leaf in leaves) and not _one_sample(leaves):
        # The run stopped before some of its tasks: how many samples ran is known, and no mean.
        result.metrics = {name: replace(NOTHING, n=one.n) for name, one in result.metrics.items()}
    if _one_sample(leaves):
        result.missing = []  # the mean is over the samples of all tasks together
    stopped = all(map(stopped_by_test, leaves))
    result.metrics = with_sequence(benchmark.name, result, decisions, stopped=stopped)
    return result


def stopped_by_test(result: TaskResult) -> bool:
    """Whether a test after each block of samples, or a budget between two of them, ended the run before all were done."""
    return result.sampled is not None and result.sampled.method == "sequential" and result.n < result.total


def with_sequence(
    name: str, result: TaskResult | BenchmarkResult, decisions: Sequence[Decision], *, stopped: bool
) -> dict[str, Estimate]:
    """The metrics with the confidence sequence as the interval of one that was decided, where the run `stopped` early: an
    interval for a fixed number of samples does not account for the looks."""
    found = dict(result.metrics)
    about = [one for one in decisions if one.of == name and one.looks and one.metric in found and one.n <= result.n]
    for one in sorted(about, key=lambda one: one.n) if stopped else ():
        last = one.looks[-1]
        found[one.metric] = replace(found[one.metric], low=float(last.low), high=float(last.high))
    return found


def _has_value(leaf: TaskResult, names: Iterable[str]) -> bool:
    return any(name in leaf.metrics and leaf.metrics[name].n for name in names)


def _own_means(benchmark: Benchmark, leaves: Sequence[TaskResult]) -> dict[str, Estimate] | None:
    """The means that a benchmark computes itself, with mill's interval around them."""
    scores = {
        leaf.task: {name: (one.value, one.stderr, one.n) for name, one in leaf.metrics.items() if one.n} for leaf in leaves
    }
    means = benchmark.aggregate(scores)
    if means is None:
        return None
    return {
        name: _with_interval(value, stderr, [leaf for leaf in leaves if name in leaf.metrics], name)
        for name, (value, stderr) in means.items()
    }


def _with_interval(value: float, stderr: float | None, leaves: Sequence[TaskResult], name: str) -> Estimate:
    """The interval of the mean that this is: by samples or plain. That of another one is Student's."""
    lookup = {leaf.task: leaf for leaf in leaves}
    for weighted in (True, False):
        pooled = _pooled(Benchmark("", tuple(lookup), weighted), name, lookup)
        if math.isclose(pooled.value, value, rel_tol=1e-9, abs_tol=1e-12):
            return replace(pooled, value=value, stderr=stderr)
    return around(value, stderr, sum(leaf.metrics[name].n for leaf in leaves))


def _leaves(benchmark: Benchmark, lookup: Mapping[str, TaskResult | Benchmark]) -> list[TaskResult]:
    found: list[TaskResult] = []
    for name in benchmark.tasks:
        entry = lookup[name]
        found += _leaves(entry, lookup) if isinstance(entry, Benchmark) else [entry]
    return found


def _pooled(benchmark: Benchmark, metric: str, lookup: Mapping[str, TaskResult | Benchmark]) -> Estimate:
    if any(leaf.sampled is not None and is_random(leaf.sampled) for leaf in _leaves(benchmark, lookup)):
        return _pooled_samples(benchmark, lookup, metric)
    parts = []
    for name in benchmark.tasks:
        entry = lookup[name]
        parts.append(_pooled(entry, metric, lookup) if isinstance(entry, Benchmark) else entry.metrics[metric])
    return pool(parts, weighted=benchmark.weighted)


def _pooled_samples(benchmark: Benchmark, lookup: Mapping[str, TaskResult | Benchmark], metric: str) -> Estimate:
    """The mean over all data of the tasks, of which random samples ran: of each task, or of all of them together."""
    leaves = _leaves(benchmark, lookup)
    parts = [SampledPart(leaf.metrics[metric], leaf.total) for leaf in leaves]
    if _one_sample(leaves):
        return pool_random(parts)
    return pool_samples(parts, _weights(benchmark, lookup))


def _one_sample(leaves: Sequence[TaskResult]) -> bool:
    """Whether the samples of the tasks are one random sample of all of them together."""
    return any(leaf.sampled is not None and leaf.sampled.method == "sequential" for leaf in leaves)


def _weights(benchmark: Benchmark, lookup: Mapping[str, TaskResult | Benchmark]) -> list[float]:
    """The share of each of `_leaves` in the mean: by the sizes of their data, or equal ones."""
    entries = [lookup[name] for name in benchmark.tasks]
    inner = [_weights(entry, lookup) if isinstance(entry, Benchmark) else [1.0] for entry in entries]
    leaves = [_leaves(entry, lookup) if isinstance(entry, Benchmark) else [entry] for entry in entries]
    sizes = [sum(leaf.total for leaf in some) if benchmark.weighted else 1 for some in leaves]
    return [weight * size / sum(sizes) for weights, size in zip(inner, sizes, strict=True) for weight in weights]


def _leaf_names(benchmark: Benchmark, known: Mapping[str, Benchmark], within: tuple[str, ...] = ()) -> list[str]:
    """The tasks of a benchmark. One that contains itself, which cannot run, is one of its own tasks."""
    found = []
    for name in benchmark.tasks:
        inner = name in known and name not in within
        found += _leaf_names(known[name], known, (*within, name)) if inner else [name]
    return found
