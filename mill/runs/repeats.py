"""pass@k, avg@k, maj@k and best@k of a task's samples, beside the means over all repeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mill.api.task import Task, Value
from mill.metrics.repeats import BEST, MAJ, PASS, RepeatMetric, default_metrics, value_of
from mill.runs.samples import RunSample

MEAN, SHARE = "mean", "share"  # registered metrics; the interval of a share stays between 0 and 1


def with_repeat_metrics(task: Task, scored: Sequence[RunSample], wanted: Sequence[RepeatMetric] | None) -> list[RunSample]:
    """The same samples with the values of these metrics; None means the default ones.

    They are of the task's means, not of those of its judge. pass@k is only of metrics whose values are all 0 or 1, maj@k of
    tasks that extract an answer, best@k of judged ones.
    """
    repeats = max((len(one.responses) for one in scored), default=1)
    if wanted is None:
        wanted = default_metrics(repeats)
    judged = set(task.judge.metrics) if task.judge is not None else set()
    means = [name for name in _numeric(scored) if name not in judged and name not in task.diagnostics]
    binary = {name for name in means if all(value in (0.0, 1.0) for one in scored for value in one.values.get(name, ()))}
    if not wanted or not means:
        return list(scored)
    extracting = any(answer is not None for one in scored for answer in one.extracted_repeats)
    return [
        _with_values(one, means, binary, judged, wanted, votes=extracting or task.extracts(one.sample)) for one in scored
    ]


def _numeric(scored: Sequence[RunSample]) -> list[str]:
    """Metrics that every sample with a score has as numbers, and that are means of them."""
    good = [one for one in scored if one.error is None]
    names = dict.fromkeys(name for one in good for name in one.values)
    return [name for name in names if all(_is_mean(one, name) and _numbers(one.values.get(name, ())) for one in good)]


def _is_mean(one: RunSample, name: str) -> bool:
    return one.aggregations.get(name, MEAN) == MEAN


def _numbers(values: Sequence[Value]) -> bool:
    return bool(values) and all(isinstance(value, (int, float)) for value in values)


def _with_values(
    one: RunSample,
    means: Sequence[str],
    binary: set[str],
    judged: set[str],
    wanted: Sequence[RepeatMetric],
    *,
    votes: bool,
) -> RunSample:
    """`votes` is whether the task extracts answers: a question with none that can be read is wrong, not left out."""
    if one.error is not None:
        return one
    rating = next((one.values[name] for name in one.values if name in judged), [])
    ratings = [value if isinstance(value, (int, float)) else None for value in rating]
    found: dict[str, list[Value]] = {}
    aggregations: dict[str, str] = {}
    for metric in wanted:
        for name in means:
            if (metric.kind in (PASS, MAJ) and name not in binary) or (metric.kind == BEST and not ratings):
                continue
            values = [float(value) for value in one.values[name] if isinstance(value, (int, float))]
            answers = one.extracted_repeats if metric.kind == MAJ and votes else ()
            value = value_of(metric, values, answers=answers, ratings=ratings, seed=f"{metric}/{one.sample.id}")
            if value is not None:
                found[metric.name(name)] = [value]
                aggregations[metric.name(name)] = SHARE if name in binary else MEAN
    return replace(one, values={**one.values, **found}, aggregations={**one.aggregations, **aggregations})
