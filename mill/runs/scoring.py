"""Scoring the samples of a task: in this process, or in several where it takes long.

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

from mill.api.consent import Consent, consenting, current_consent
from mill.api.registry import imported_files
from mill.api.task import RenderSettings, Task
from mill.metrics.repeats import RepeatMetric
from mill.runs.repeats import with_repeat_metrics
from mill.runs.samples import RunSample, score_sample
from mill.support.terminal import warn
from mill.tasks import hooks
from mill.tasks.load import load_builtin, load_files, recorded_task
from mill.tasks.sources import Documents, added_folders, split_name

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
