"""Scores of a run: each task's metrics with their uncertainty, the warnings that belong to them, and means of benchmarks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace

import mill.metrics  # noqa: F401  registers the built-in metrics
from mill.api.engine import UNKNOWN, Engine, build_of
from mill.api.errors import MillError, RunError
from mill.api.registry import metrics, tasks
from mill.api.task import Benchmark, Opaque, Task, Value
from mill.metrics.aggregate import mean
from mill.metrics.estimate import NOTHING, Estimate, around, pool
from mill.metrics.finite_population import SampledPart, Stratum, pool_random, pool_samples, stratified_mean
from mill.metrics.paired import inside
from mill.plan.sampling import is_random, leaf_tasks, replaces
from mill.score.judging import judge_failures
from mill.store.folder import MANIFEST, RESULTS, RunFolder
from mill.store.sample_row import FLAGS
from mill.store.samples import RunSample, metrics_of
from mill.store.schema import BenchmarkResult, Decision, Entry, FailedSample, Flagged, SampledData, TaskEntry, TaskResult
from mill.store.session import SessionFile, read_entries
from mill.support.terminal import describe, warn

MOST_LISTED = 20
MOST_NAMED = 4
UNCATEGORIZED = "(none)"
_ATTEMPTS = 50


def summarize(
    task: Task,
    scored: Sequence[RunSample],
    *,
    n_shots: int,
    total: int,
    data_hash: str,
    sampled: SampledData | None = None,
    partial: bool = False,
    judged: bool = False,
) -> TaskResult:
    """The result of a task. `sampled` says which samples these are; the intervals of a random sample are about all data. Of
    a `partial` run, which stopped at its budget, samples that were not reached do not count."""
    planned = len(scored)
    if partial:
        scored = [one for one in scored if not one.pending]
    if len(scored) >= total:
        sampled = None
    good = [one for one in scored if one.error is None]
    failures: list[FailedSample] = [{"id": one.sample.id, "error": one.error} for one in scored if one.error is not None]
    names = _metrics(task, good)
    return TaskResult(
        task=task.name,
        task_type=task.task_type.value,
        version=task.version,
        n_shots=n_shots,
        n=len(scored),
        total=total,
        errors=len(failures),
        metrics=_estimates(task, names, good, total, sampled),
        failures=failures[:MOST_LISTED],
        data_hash=data_hash,
        flags=count_flags((one.sample.id, one.flags) for one in scored),
        categories=_category_estimates(task, names, good, sampled),
        unjudged=_unjudged(task, good),
        sampled=sampled,
        pending=planned - len(scored),
        not_judged=sum(not one.judgements for one in good) if partial and judged and task.judge is not None else 0,
    )


def count_flags(samples: Iterable[tuple[str | int, Iterable[str]]]) -> dict[str, Flagged]:
    """How many samples have each flag, and the first of them; in the order of `FLAGS`."""
    found = {name: Flagged(0) for name in FLAGS}
    for sample, flags in samples:
        for name in flags:
            found[name].add(sample)
    return {name: one for name, one in found.items() if one.n}


def mixed_engines(samples: Iterable[RunSample], engines: Mapping[str, Engine]) -> list[str]:
    """What is to be said where not all answers came of one build, one provider, and one state of a server."""
    answers = [response for one in samples for repeat in one.responses for response in repeat]
    labels = {build_of(name): engine.label for name, engine in engines.items()}
    same = {label for label, count in Counter(labels.values()).items() if count > 1}
    labels = {build: f"{label} ({build})" if label in same else label for build, label in labels.items()}
    sources = {
        "builds": [labels.get(build_of(one.engine or ""), UNKNOWN) for one in answers],
        "providers": [one.provider for one in answers if one.provider],
        "fingerprints of the system": [one.system_fingerprint for one in answers if one.system_fingerprint],
    }
    found = []
    for what, names in sources.items():
        counts = Counter(names)
        shown = ", ".join(f"{name} ({count})" for name, count in counts.most_common(MOST_NAMED))
        found += [f"answers of {len(counts)} {what}: {shown}"] if len(counts) > 1 else []
    return found


def stopped_text(limit: str, results: Sequence[TaskResult], *, staged: bool = False) -> str:
    """At which limit a run stopped and how far it came; empty where it did not. How many samples a `staged` run would have
    taken is not known."""
    if not limit:
        return ""
    done, pending = sum(one.n for one in results), sum(one.pending for one in results)
    not_judged = sum(one.not_judged for one in results)
    judged = f", {done - not_judged:,} of them judged" if not_judged else ""
    return f"stopped at {limit}: {done:,}{'' if staged else f' of {done + pending:,}'} samples{judged}"


def _estimates(
    task: Task, names: Mapping[str, str], scored: Sequence[RunSample], total: int, sampled: SampledData | None
) -> dict[str, Estimate]:
    found = {name: _estimate(task, name, how, _valued(scored, name)) for name, how in names.items()}
    if sampled is None or not is_random(sampled):
        return found
    strata = sampled.strata if len(sampled.strata) > 1 and sampled.method == "random" else {}
    return {name: of_sample(task, name, names[name], one, scored, total, strata) for name, one in found.items()}


def _category_estimates(
    task: Task, names: Mapping[str, str], scored: Sequence[RunSample], sampled: SampledData | None
) -> dict[str, dict[str, Estimate]]:
    groups = _by_category(task, scored)
    part = replace(sampled, strata={}) if sampled is not None else None
    sizes = dict(sampled.strata) if sampled is not None else {}
    sizes[UNCATEGORIZED] = sizes.get("", 0)
    return {name: _estimates(task, names, group, sizes.get(name, len(group)), part) for name, group in groups.items()}


def _unjudged(task: Task, scored: Sequence[RunSample]) -> dict[str, int]:
    """For each metric of the judge, the samples that lack a value in some repeat because the judge failed on them."""
    failed = [one for one in scored if judge_failures([one])]
    counts = {
        name: sum(any(value is None for value in one.values.get(name, ())) for one in failed)
        for name in (task.judge.metrics if task.judge is not None else ())
    }
    return {name: count for name, count in counts.items() if count}


def _by_category(task: Task, scored: Sequence[RunSample]) -> dict[str, list[RunSample]]:
    """The samples of each category, of a task that reports them and where there are any."""
    groups: dict[str, list[RunSample]] = {}
    for one in scored if task.by_category else ():
        groups.setdefault(one.category or UNCATEGORIZED, []).append(one)
    return {} if set(groups) <= {UNCATEGORIZED} else dict(sorted(groups.items()))


def _metrics(task: Task, scored: Sequence[RunSample]) -> dict[str, str]:
    names = metrics_of(task, scored)
    return {**names, **{name: one.aggregations.get(name, OWN) for one in scored for name in one.values if name not in names}}


def _estimate(task: Task, name: str, how: str, values: Sequence[list[Value]]) -> Estimate:
    """A metric of no samples is NaN; third-party metrics are not called for it."""
    if not values:
        return NOTHING
    if how == OWN:
        return _own_estimate(task, name, values)
    try:
        found: Estimate = metrics.get(how)(values)
    except (MillError, KeyboardInterrupt):
        raise
    except BaseException as error:  # third-party code may raise anything
        raise RunError(f"the metric {how} of {name} raised {describe(error)}") from error
    return found


def _own_estimate(task: Task, name: str, values: Sequence[list[Value]]) -> Estimate:
    """A metric that the task sums up itself, with mill's interval around it. One that fails is NaN, with a warning: the
    other metrics and tasks keep their values."""
    try:
        return _aggregated(task, name, values)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # third-party code may raise anything
        warn(f"{task.name}: {name} has no value, because its aggregation raised {describe(error)}")
        return NOTHING


def _aggregated(task: Task, name: str, values: Sequence[list[Value]]) -> Estimate:
    """A metric as its task sums it up. Repeats of a sample count by their mean if they are numbers, else each by itself."""
    as_mean: Estimate | None = None
    if all(isinstance(one, (int, float)) for repeats in values for one in repeats):
        as_mean = mean(values)
        found = task.aggregate(name, [sum(repeats) / len(repeats) for repeats in values])  # type: ignore[arg-type]
    else:
        each = (one for repeats in values for one in repeats)
        found = task.aggregate(name, [one.value if isinstance(one, Opaque) else one for one in each])
    if found is None:
        raise TypeError(f"aggregate() of the task {task.name} gives nothing for {name!r}")
    value, stderr = found
    limits = task.limits(name)
    if not limits[0] <= value <= limits[1]:  # another scale than the metric's name suggests
        limits = (-math.inf, math.inf)
    if as_mean is not None and math.isclose(as_mean.value, value, rel_tol=1e-12, abs_tol=1e-15):
        estimate = inside(replace(as_mean, value=value, stderr=stderr), *limits)  # that of a proportion or of a mean
        collapsed = not stderr and limits != (0.0, 1.0)  # of zeros alone it is not known that they are proportions
    else:
        estimate, collapsed = inside(around(value, stderr, len(values)), *limits), not stderr
    return replace(estimate, low=None, high=None) if collapsed else estimate  # equal values do not show the spread of others


def _valued(scored: Sequence[RunSample], metric: str) -> list[list[Value]]:
    """The values of samples that have any of this metric."""
    found: Iterable[list[Value]] = ([v for v in one.values.get(metric, ()) if v is not None] for one in scored)
    return [values for values in found if values]


def write_results(
    session: SessionFile,
    results: Mapping[str, TaskResult],
    benchmarks: Sequence[Benchmark] = (),
    decisions: Sequence[Decision] = (),
) -> set[str]:
    """Write results, by the requested names, and return the tasks whose results were written. A result over fewer samples
    of the same data is not, if they were chosen in the same way or the others are all: a run with a small limit never
    replaces the full one.

    The means of benchmarks are computed from the results that the folder has then, also those of earlier commands. Decisions
    stay beside the scores of more samples, as long as the data are the same.
    """
    folder = session.folder
    earlier = read_entries(folder, RESULTS, "tasks", TaskResult)
    written = [result for result in results.values() if not _larger(earlier.get(result.task), result)]
    other_data = {name for name, one in results.items() if one.task in earlier and not _same_data(earlier[one.task], one)}
    entries = dict.fromkeys(_decided(folder, other_data), Entry(None))
    entries |= {one.name: Entry(asdict(one), weight=one.n) for one in decisions}
    if written or entries:
        tasks = {one.task: Entry(one.to_dict(), weight=one.n) for one in written}
        session.publish(RESULTS, {"tasks": tasks, **({"decisions": entries} if entries else {})})
    changed = {one.task for one in written if one.task not in earlier or earlier[one.task].to_dict() != one.to_dict()}
    for _ in range(_ATTEMPTS):  # another process may write a task's result at the same time
        means = _changed_means(folder, results, benchmarks, changed)
        if not means:
            break
        session.publish(RESULTS, {"benchmarks": means})
    return {result.task for result in results.values() if not _larger(earlier.get(result.task), result)}


def _decided(folder: RunFolder, tasks: Collection[str]) -> list[str]:
    """The decisions of a folder about these tasks, or about benchmarks with one of them."""
    if not tasks:
        return []
    groups = {name: set(one.tasks) for name, one in read_entries(folder, RESULTS, "benchmarks", BenchmarkResult).items()}
    known = read_entries(folder, RESULTS, "decisions", Decision)
    return [name for name, one in known.items() if groups.get(one.of, {one.of}) & set(tasks)]


def changed_data(folder: RunFolder, data_hashes: Mapping[str, str]) -> list[str]:
    """Warnings about tasks whose data, by their hashes, are not those of the result that the folder has.

    No response is reused for another question; but the folder has one result of a task, so the new one replaces it.
    """
    earlier = read_entries(folder, RESULTS, "tasks", TaskResult)
    return [
        f"{task}: the data changed since the earlier result over {earlier[task].n} samples, which this run replaces "
        f"(data_hash {earlier[task].data_hash[:8]}, now {data_hash[:8]}); another --output_dir keeps both"
        for task, data_hash in data_hashes.items()
        if task in earlier and earlier[task].data_hash not in ("", data_hash)
    ]


def _changed_means(
    folder: RunFolder, results: Mapping[str, TaskResult], benchmarks: Sequence[Benchmark], changed: set[str]
) -> dict[str, Entry]:
    """The means that differ from what the folder has, computed from the results that it has.

    A benchmark that is not registered here cannot be computed: where one of its tasks has `changed`, it loses its mean.
    """
    written = read_entries(folder, RESULTS, "benchmarks", BenchmarkResult)
    counting = read_entries(folder, RESULTS, "tasks", TaskResult)
    planned = read_entries(folder, MANIFEST, "tasks", TaskEntry)
    task_of = {one.requested or name: name for name, one in planned.items()}
    task_of |= {name: one.task for name, one in results.items()}
    by_name = {name: counting[task] for name, task in task_of.items() if task in counting}
    known = {**_registered(written), **{one.name: one for one in benchmarks}}
    decisions = read_entries(folder, RESULTS, "decisions", Decision)
    means = summarize_benchmarks(by_name, list(known.values()), list(decisions.values()))
    means += [replace(one, metrics={}) for name, one in written.items() if name not in known and changed & set(one.tasks)]
    return {
        mean.benchmark: Entry(mean.to_dict(), weight=mean.n)
        for mean in means
        if mean.benchmark not in written or mean.to_dict() != written[mean.benchmark].to_dict()
    }


def _registered(names: Iterable[str]) -> dict[str, Benchmark]:
    """Benchmarks of these names, with those inside of them."""
    found: dict[str, Benchmark] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        entry = tasks.get(name) if name in tasks and name not in found else None
        if isinstance(entry, Benchmark):
            found[name] = entry
            waiting += entry.tasks
    return found


def _larger(earlier: TaskResult | None, result: TaskResult) -> bool:
    """Whether an earlier result is one of the same task and data over more samples."""
    if earlier is None or not _same_data(earlier, result):
        return False
    if earlier.n < result.total and replaces(result.sampled, earlier.sampled):
        return False
    return result.n < earlier.n <= result.total


def _same_data(earlier: TaskResult, result: TaskResult) -> bool:
    return (earlier.data_hash, earlier.version) == (result.data_hash, result.version)


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


# Benchmarks: means over the results of their tasks.


def summarize_benchmarks(
    results: Mapping[str, TaskResult], benchmarks: Sequence[Benchmark], decisions: Sequence[Decision] = ()
) -> list[BenchmarkResult]:
    """The means of benchmarks whose tasks all have results, by the requested names of the tasks. `decisions` are those that
    were made by tests after each block of samples."""
    known = {entry.name: entry for entry in benchmarks}
    whole = [one for one in benchmarks if (leaves := leaf_tasks(one, known)) and all(leaf in results for leaf in leaves)]
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
