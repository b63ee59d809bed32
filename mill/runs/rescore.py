"""Scoring a recorded run anew, without the model and without the data: `mill score`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from mill.api.registry import tasks as registry
from mill.api.task import Benchmark, RenderSettings, Task
from mill.execute.executor import Tally
from mill.execute.jobs import Job, replay
from mill.runs.evaluate import Outcome
from mill.runs.folder import RESULTS, RunFolder
from mill.runs.record import Record
from mill.runs.results import TaskResult, summarize, summarize_benchmarks, write_results
from mill.runs.samples import SampleRecord, from_job, read_samples, score_sample, write_samples


def score_again(folder: RunFolder, make_task: Callable[[str], Task]) -> Outcome:
    """Read samples and answers from a run's files and score them with the tasks as they are now."""
    started, known = time.time(), folder.manifest()
    record, settings = Record(folder.path), RenderSettings(**known["settings"])
    results: dict[str, TaskResult] = {}
    earlier = folder.read(RESULTS).get("tasks", {})
    for name, entry in known["tasks"].items():
        task = make_task(name)
        samples = [_answered(task, sample, record, settings) for sample in read_samples(folder.samples_file(name))]
        scored = [score_sample(task, sample) for sample in samples]
        result = summarize(task, scored, n_shots=entry["n_shots"], total=entry["total"], data_hash=entry["data_hash"])
        result.notes = earlier.get(name, {}).get("notes", entry["notes"])  # with those of a judge
        results[entry["asked"]] = result
        write_samples(folder.samples_file(name), name, scored)
    written = folder.read(RESULTS).get("benchmarks", {})
    benchmarks = [entry for name in written if name in registry and isinstance(entry := registry.get(name), Benchmark)]
    means = summarize_benchmarks(results, benchmarks)
    write_results(folder, list(results.values()), means)
    return Outcome(known["model"]["name"], folder, list(results.values()), means, Tally(), time.time() - started)


def _answered(task: Task, sample: SampleRecord, record: Record, settings: RenderSettings) -> SampleRecord:
    """A sample with the answers that the record has under its keys."""
    if task.multi_round:
        return _replayed(task, sample, record, settings)
    found = [[record.lookup(key) for key in keys] for keys in sample.keys]
    return replace(sample, responses=[[answer for answer in repeat if answer is not None] for repeat in found])


def _replayed(task: Task, sample: SampleRecord, record: Record, settings: RenderSettings) -> SampleRecord:
    """A dialog, led again from its first round with the recorded answers: only so are its later rounds known."""
    job = Job.of(task, sample.sample, settings)
    replay(job, record.lookup)
    return replace(from_job(job), judgements=sample.judgements)
