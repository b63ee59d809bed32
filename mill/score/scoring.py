"""Scoring the samples of a task, with pass@k, avg@k, maj@k and best@k beside the means over repeats: in this process, or in
several where it takes long.

Some metrics take a second for a sample, such as the comparison of two formulas. A process makes the task again by its name,
over the recorded documents, and scores a part of the samples.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace

from mill.api.consent import Consent, consenting, current_consent
from mill.api.registry import imported_files
from mill.api.task import RenderSettings, Task, Value
from mill.metrics.repeats import BEST, MAJ, PASS, RepeatMetric, default_metrics, value_of
from mill.store.samples import RunSample, score_sample
from mill.support.terminal import warn
from mill.tasks import hooks
from mill.tasks.load import Documents, added_folders, load_builtin, load_files, recorded_task, split_name

PATIENCE_S = 20.0  # of scoring that is left before processes are worth their start
_TRIED = 8
_CHUNK = 8


def score_samples(
    task: Task,
    records: Sequence[RunSample],
    settings: RenderSettings,
    repeat_metrics: Sequence[RepeatMetric] | None = None,
) -> list[RunSample]:
    """Every sample of a task with its values, in order, and with these metrics over its repeats; `settings` are those of the
    run."""
    return with_repeat_metrics(task, _score_all(task, records, settings), repeat_metrics)


def _score_all(task: Task, records: Sequence[RunSample], settings: RenderSettings) -> list[RunSample]:
    answered = [(record.sample, repeat) for record in records if record.unanswered is None for repeat in record.responses]
    hooks.attempt(lambda: task.prepare_scoring(answered))  # a failure is that of a sample, whose score() meets it again
    started = time.monotonic()
    scored = [score_sample(task, record) for record in records[:_TRIED]]
    rest = records[_TRIED:]
    expected = (time.monotonic() - started) / _TRIED * len(rest)
    if expected > PATIENCE_S and split_name(task.name) is not None and (os.cpu_count() or 1) > 1:
        return scored + _in_processes(task, rest, settings)
    return scored + [score_sample(task, record) for record in rest]


def _in_processes(task: Task, records: Sequence[RunSample], settings: RenderSettings) -> list[RunSample]:
    """Where processes cannot be used the samples are scored here."""
    documents = [record.sample.doc for record in records]
    paths = (*imported_files(), *added_folders())
    given = (task.name, documents, settings, paths, current_consent())
    try:
        # A new interpreter: a copy of this one would share the model's threads and accelerators.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(os.cpu_count(), mp_context=context, initializer=_start, initargs=given) as pool:
            return list(pool.map(_score, records, chunksize=_CHUNK))
    except (BrokenProcessPool, OSError, TypeError, AttributeError) as error:  # such as values that cannot be pickled
        warn(f"{task.name} is scored in one process: {type(error).__name__}")
        return [score_sample(task, record) for record in records]


_scoring: tuple[Task, Consent] | None = None  # of a scoring process


def _start(name: str, documents: Documents, settings: RenderSettings, paths: tuple[str, ...], consent: Consent) -> None:
    global _scoring
    load_builtin()
    load_files(paths)
    _scoring = recorded_task(name, {name: documents}, settings), consent


def _score(record: RunSample) -> RunSample:
    assert _scoring is not None, "_start runs before the first sample"
    task, consent = _scoring
    with consenting(consent):
        return score_sample(task, record)


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
