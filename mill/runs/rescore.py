"""Scoring a recorded run again, without the model and without the data: `mill score`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mill.api.errors import MillError, RunError
from mill.api.response import Response
from mill.api.task import RenderSettings, Task
from mill.execute.executor import Tally
from mill.execute.sample_state import SampleState, replay
from mill.metrics.aggregate import read_repeat_metrics
from mill.plan.sampling import random_position
from mill.runs.adaptive import decide_again
from mill.sandbox.programs import UNISOLATED, refuse_unsafe_code, sandbox_warnings
from mill.score.judging import judge_failures
from mill.score.results import stopped_by_test, summarize, summarize_benchmarks, with_sequence, write_results
from mill.score.run_scores import Outcome, score_samples
from mill.store.folder import MANIFEST, RunFolder
from mill.store.record import Record
from mill.store.samples import RunSample, from_state, read_samples, write_samples
from mill.store.schema import Decision, Manifest, Results, TaskEntry, TaskResult
from mill.store.session import SessionFile
from mill.support.terminal import warn
from mill.support.validate import convert
from mill.tasks import hooks
from mill.tasks.load import recorded_benchmarks, recorded_task


def score_again(folder: RunFolder, repeat_metrics: Sequence[str] | None = None) -> Outcome:
    """Read samples and responses from a run's files and score them with the tasks as they are now. A task that cannot be
    made here keeps its result. `repeat_metrics` are such as pass@5."""
    started, where = time.time(), folder.path / MANIFEST
    known = convert(folder.manifest(), Manifest, where, RunError)
    record = Record(folder.path, root=folder.root)
    settings = convert(known.settings, RenderSettings, f"settings in {where}", RunError)
    over_repeats = read_repeat_metrics(repeat_metrics, settings.repeats, judged=bool(known.judge))
    earlier = folder.results()
    results: dict[str, TaskResult] = {}
    scored: dict[str, list[RunSample]] = {}
    read = {name: _read(folder, name, entry) for name, entry in known.tasks.items()}
    documents = {name: [one.sample.doc for one in samples] for name, samples in read.items()}
    left_out: dict[str, str] = {}
    for name, entry in known.tasks.items():
        try:
            task = recorded_task(name, documents, settings)
            refuse_unsafe_code([task])
        except MillError as error:
            if len(known.tasks) == 1:
                raise
            left_out[name] = str(error)
            continue
        samples = _answered(folder, task, read[name], record, settings)
        if name not in earlier.tasks and not any(any(one.responses) for one in samples):
            left_out[name] = "none of its samples was answered yet; the same `mill eval` continues"
            continue
        scored[name] = score_samples(task, samples, settings, over_repeats)
        before = earlier.tasks.get(name)
        how: dict[str, Any] = {"n_shots": entry.n_shots, "total": entry.total, "data_hash": entry.data_hash}
        how["sampled"] = entry.sampled
        if before is not None and (before.pending or before.not_judged):  # it stopped at its budget
            how |= {"partial": True, "judged": bool(before.not_judged), "sampled": before.sampled}
        result = summarize(task, scored[name], **how)
        warnings = before.warnings if before is not None else entry.warnings  # with the judge's
        result.warnings = [line for line in warnings if line != UNISOLATED] + sandbox_warnings(task)
        results[name if entry.requested in results else entry.requested or name] = result
    if not results and left_out:
        name, reason = next(iter(left_out.items()))
        raise RunError(f"none of the {len(left_out)} tasks can be scored again: {name}: {reason}")
    decisions = _decided_again(earlier, known.tasks, scored, settings.seed or 0)
    for name, result in results.items():
        result.metrics = with_sequence(name, result, decisions, stopped=stopped_by_test(result))
    benchmarks = recorded_benchmarks(earlier.benchmarks, documents)
    means = summarize_benchmarks(results, benchmarks, decisions)
    with SessionFile(folder) as session:
        for name in write_results(session, results, benchmarks, decisions):
            write_samples(folder, known.model.name, name, scored[name])
    seconds, failures = time.time() - started, sum(map(judge_failures, scored.values()))
    tasks = list(results.values())
    outcome = Outcome(known.model.name, folder, tasks, means, Tally(), seconds, decisions=decisions)
    return replace(outcome, judge_failures=failures, left_out=left_out)


def _decided_again(
    earlier: Results, entries: Mapping[str, TaskEntry], scored: Mapping[str, Sequence[RunSample]], seed: int
) -> list[Decision]:
    """The claims of the run, tested again: the same samples in the same order, with their scores as they are now. A decision
    about samples that the folder has no more stays as it is."""
    again = []
    for decision in earlier.decisions.values():
        benchmark = earlier.benchmarks.get(decision.of)
        tasks = benchmark.tasks if benchmark is not None else [decision.of]
        if all(name in scored and _has_first_drawn(entries[name]) for name in tasks):
            rows = [(entries[name].requested or name, one) for name in tasks for one in scored[name]]
            rows.sort(key=lambda row: random_position(seed, row[0], row[1].sample))  # as they were drawn
            try:
                decision = decide_again(decision, [one for _, one in rows])
            except MillError as error:
                warn(f"{decision.claim} of {decision.of} is not tested again: {error}")
        again.append(decision)
    return again


def _has_first_drawn(entry: TaskEntry) -> bool:
    """Whether the samples of a task that the folder has are the first ones of a random order, or all."""
    return entry.n == entry.total or (entry.sampled is not None and entry.sampled.method == "sequential")


def _read(folder: RunFolder, task: str, entry: TaskEntry) -> list[RunSample]:
    file = folder.samples_file(task)
    read = read_samples(file)
    if len(read) != entry.n:
        raise RunError(f"{file} has {len(read)} samples and {MANIFEST} says {entry.n}: run the same `mill eval` again")
    return read


def _answered(
    folder: RunFolder, task: Task, read: Sequence[RunSample], record: Record, settings: RenderSettings
) -> list[RunSample]:
    """The samples of a task with the responses of the record; those that only the samples file has stay."""
    samples = [_with_responses(task, _with_target(task, sample), record, settings) for sample in read]
    file = folder.samples_file(task.name).name
    missing = sum(from_file for _, from_file in samples)
    if missing:
        lacks = f"the record lacks responses of {missing} of {len(samples)} samples of {task.name}"
        warn(f"{folder.path}: {lacks}; {file} has them")
    return [sample for sample, _ in samples]


def _with_target(task: Task, sample: RunSample) -> RunSample:
    """With the target as the task spells it now, beside which an extracted answer is read."""
    target = hooks.attempt(lambda: task.target(sample.sample))
    return sample if target is None else sample.updated(target=target)


def _with_responses(task: Task, sample: RunSample, record: Record, settings: RenderSettings) -> tuple[RunSample, bool]:
    """A sample with its responses, and whether one of them is in the samples file alone."""
    stored: dict[str, Response] = {}
    used = []
    for keys, given in zip(sample.keys, sample.responses, strict=True):
        if len(keys) == len(given):  # of an incomplete list it is not known which is missing
            stored.update(zip(keys, given, strict=True))

    def lookup(key: str) -> Response | None:
        recorded, own = record.lookup(key), stored.get(key)
        if own is not None and not own.failed and (recorded is None or recorded.failed):
            used.append(key)
            return own
        return recorded

    if task.multi_round:
        again = _replayed(task, sample, lookup, settings)
    else:
        known = [[lookup(key) for key in keys] for keys in sample.keys]
        again = sample.updated(responses=[[answer for answer in repeat if answer is not None] for repeat in known])
    if _count(again.responses) < _count(sample.responses):  # fewer responses never replace more
        return sample, True
    return again, bool(used)


def _replayed(
    task: Task, sample: RunSample, lookup: Callable[[str], Response | None], settings: RenderSettings
) -> RunSample:
    """A dialog, replayed from its first round with the recorded responses: its later rounds depend on them."""
    state = SampleState.of(task, sample.sample, settings)
    replay(state, lookup)
    return from_state(state, [sample.sent]).updated(judgements=sample.judgements)


def _count(responses: Sequence[Sequence[Response]]) -> int:
    return sum(not answer.failed for repeat in responses for answer in repeat)
