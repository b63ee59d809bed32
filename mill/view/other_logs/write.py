"""Writes a converted log as a run of mill: its samples one at a time, then results.json and manifest.json."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from msgspec import structs

from mill.api.errors import RunError
from mill.metrics.estimate import Estimate, around, exact_interval, is_proportion
from mill.metrics.paired import inside
from mill.score.results import MOST_LISTED, count_flags
from mill.store.folder import MANIFEST, RESULTS, RunFolder
from mill.store.sample_row import columns_of, line_of, run_columns, write_lines
from mill.store.samples import RunSample, row_of
from mill.store.schema import BenchmarkResult, FailedSample, SessionEntry, TaskEntry, TaskResult
from mill.support.terminal import warn

_DEEPEST = 200  # levels of lists and objects in a sample; readers in Python end at about a thousand


@dataclass(frozen=True)
class ConvertedSample:
    """A sample of a log; `columns` replace those that mill computes of its own samples."""

    scored: RunSample
    columns: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BrokenSample:
    """A sample that cannot be read, and why."""

    reason: str


@dataclass
class TaskLog:
    """A task of a log with its own metrics. Its samples are read once, while they are written; None where none are logged.

    `n` is the number of samples as the tool reports it, None where it does not.
    """

    name: str
    samples: Iterable[ConvertedSample | BrokenSample] | None
    metrics: dict[str, Estimate] = field(default_factory=dict)
    version: int | str = ""
    task_type: str = ""
    n_shots: int = 0
    n: int | None = None
    total: int = 0
    data_hash: str = ""
    warnings: list[str] = field(default_factory=list)


@dataclass
class ConvertedRun:
    """What a log says about its run, as it is in manifest.json; `about` has the fields beside tasks and sessions."""

    model: str
    about: Mapping[str, Any]
    session: SessionEntry


@dataclass
class SampleCounts:
    """What is counted while the samples of a task are written."""

    n: int = 0
    responses: int = 0
    broken: int = 0
    first_reason: str = ""
    errors: int = 0
    failures: list[FailedSample] = field(default_factory=list)
    flagged: list[tuple[str | int, list[str]]] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The smallest and the largest value of each metric."""

    def add(self, scored: RunSample) -> None:
        for name, values in scored.values.items():
            numbers = [float(value) for value in values if isinstance(value, (int, float))]
            low, high = self.ranges.get(name, (math.inf, -math.inf))
            self.ranges[name] = min(low, *numbers, math.inf), max(high, *numbers, -math.inf)
        self.n += 1
        self.responses += sum(map(len, scored.responses))
        self.flagged += [(scored.sample.id, flags)] if (flags := scored.flags) else []
        if scored.error is not None and not any(value is not None for one in scored.values.values() for value in one):
            self.errors += 1
            if len(self.failures) < MOST_LISTED:
                self.failures.append({"id": scored.sample.id, "error": scored.error})

    def add_broken(self, reason: str) -> None:
        self.broken += 1
        self.first_reason = self.first_reason or reason


def tool_estimate(value: float, stderr: float | None, n: int) -> Estimate:
    """A metric as a tool reports it. Its interval is mill's: exact for proportions, else Student's around the value; none
    where the standard error or the number of samples is not known."""
    known = stderr if stderr is not None and math.isfinite(stderr) else None
    estimate = around(value, known, n)
    if known is None or n < 1:
        return Estimate(value, known, None, None, n)
    if is_proportion(estimate):
        low, high = exact_interval(value * n, n)
        return Estimate(value, known, low, high, n)
    return estimate


def write_task(folder: RunFolder, model: str, task: TaskLog) -> tuple[TaskEntry, TaskResult, SampleCounts]:
    """Write the samples of a task; its entries in manifest.json and results.json. Broken samples are counted."""
    counts = SampleCounts()
    if task.samples is None:
        task.warnings.append("its samples are not in the log")
    else:
        write_lines(folder, task.name, _lines(folder, model, task.name, task.samples, counts))
    if counts.broken:
        task.warnings.append(f"{counts.broken} samples cannot be read, the first: {counts.first_reason}")
        warn(f"{task.name}: {task.warnings[-1]}")
    n = counts.n if task.n is None else max(task.n, counts.n)
    total = max(task.total, n)
    entry = TaskEntry(
        task.version, n, total, task.data_hash, task.name, task.task_type, task.n_shots, warnings=task.warnings
    )
    metrics = dict(task.metrics)
    for name, one in metrics.items():  # the interval of a mean of values between 0 and 1 has no other ones
        first, last = counts.ranges.get(name, (-1.0, -1.0))
        if 0 <= first <= last <= 1 and one.low is not None and one.high is not None:
            metrics[name] = inside(one)
    result = TaskResult(
        task=task.name,
        task_type=task.task_type,
        version=task.version,
        n_shots=task.n_shots,
        n=n,
        total=total,
        errors=counts.errors,
        metrics=metrics,
        warnings=task.warnings,
        failures=counts.failures,
        data_hash=task.data_hash,
        flags=count_flags(counts.flagged),
    )
    return entry, result, counts


def write_run(
    folder: RunFolder,
    run: ConvertedRun,
    entries: Iterable[TaskEntry],
    results: Iterable[TaskResult],
    benchmarks: Iterable[BenchmarkResult] = (),
) -> None:
    scores = {
        "tasks": {result.task: result.to_dict() for result in results},
        "benchmarks": {mean.benchmark: mean.to_dict() for mean in benchmarks},
    }
    folder.write(RESULTS, scores)
    tasks = {entry.requested: asdict(entry) for entry in entries}
    folder.write(MANIFEST, {**run.about, "fresh": False, "tasks": tasks, "sessions": [asdict(run.session)]})


def _lines(
    folder: RunFolder,
    model: str,
    task: str,
    samples: Iterable[ConvertedSample | BrokenSample],
    counts: SampleCounts,
) -> Iterator[str]:
    run = run_columns(model, folder)
    for one in samples:
        if isinstance(one, BrokenSample):
            counts.add_broken(one.reason)
            continue
        name = one.scored.sample.id
        if name in counts.seen:
            counts.add_broken(f"there is a second sample {name}")
            continue
        counts.seen.add(name)
        try:
            columns = columns_of(structs.replace(row_of(run, task, one.scored), **one.columns))
            if nested_deeper(columns, _DEEPEST):
                raise RunError(f"it is nested deeper than {_DEEPEST} levels")
            line = line_of(columns)
        except (RunError, RecursionError, ArithmeticError, ValueError) as error:  # such as a number without a float
            counts.add_broken(f"sample {name}: {error}")
            continue
        counts.add(one.scored)
        yield line


def nested_deeper(data: Any, levels: int) -> bool:
    """Whether lists and objects are nested deeper than so many levels."""
    level = [data]
    for _ in range(levels):
        inner = [list(one.values()) if isinstance(one, dict) else one for one in level]
        level = [part for one in inner if isinstance(one, (list, tuple)) for part in one]
        if not level:
            return False
    return True
