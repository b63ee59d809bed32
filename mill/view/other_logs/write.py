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
from mill.store.schema import BenchmarkResult, SessionEntry, TaskEntry, TaskResult
from mill.support.terminal import warn

_DEEPEST = 200  # levels of lists and objects in a sample; readers in Python end at about a thousand
Converted = tuple[RunSample, Mapping[str, Any]] | str
"""A sample of a log with the columns that replace those that mill computes of its own samples; or why it cannot be read."""


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


@dataclass
class ConvertedTask:
    """A task of a log: the result as the tool reports it, to which its samples add what is counted while they are written.
    They are read once; None where none are logged."""

    result: TaskResult
    samples: Iterable[Converted] | None
    n: int = 0
    responses: int = 0
    broken: list[str] = field(default_factory=list)

    def write(self, folder: RunFolder, model: str) -> TaskEntry:
        """Write the samples; the entry of manifest.json. Samples that cannot be read are counted."""
        result, flagged, scales = self.result, list[tuple[str | int, list[str]]](), dict[str, tuple[float, float]]()
        if self.samples is None:
            result.warnings.append("its samples are not in the log")
        else:
            write_lines(folder, result.task, self._lines(run_columns(model, folder), self.samples, flagged, scales))
        if self.broken:
            result.warnings.append(f"{len(self.broken)} samples cannot be read, the first: {self.broken[0]}")
            warn(f"{result.task}: {result.warnings[-1]}")
        result.n = max(result.n, self.n)
        result.total = max(result.total, result.n)
        result.flags = count_flags(flagged)
        for name, one in result.metrics.items():  # the interval of a mean of values between 0 and 1 has no other ones
            first, last = scales.get(name, (-1.0, -1.0))
            if 0 <= first <= last <= 1 and one.low is not None and one.high is not None:
                result.metrics[name] = inside(one)
        names = ("version", "n", "total", "data_hash", "task_type", "n_shots", "warnings")
        return TaskEntry(requested=result.task, **{name: getattr(result, name) for name in names})

    def _lines(
        self,
        run: Mapping[str, str],
        samples: Iterable[Converted],
        flagged: list[tuple[str | int, list[str]]],
        scales: dict[str, tuple[float, float]],
    ) -> Iterator[str]:
        """`scales` gets the smallest and the largest value of each metric."""
        seen: set[str | int] = set()
        for converted in samples:
            if isinstance(converted, str):
                self.broken.append(converted)
                continue
            sample, columns = converted
            name = sample.sample.id
            try:
                if name in seen:
                    raise RunError("there is a second sample of this id")
                seen.add(name)
                row = columns_of(structs.replace(row_of(dict(run), self.result.task, sample), **columns))
                if nested_deeper(row, _DEEPEST):
                    raise RunError(f"it is nested deeper than {_DEEPEST} levels")
                line = line_of(row)
            except (RunError, RecursionError, ArithmeticError, ValueError) as error:  # such as a number without a float
                self.broken.append(f"sample {name}: {error}")
                continue
            for metric, values in sample.values.items():
                numbers = [float(value) for value in values if isinstance(value, (int, float))]
                low, high = scales.get(metric, (math.inf, -math.inf))
                scales[metric] = min(low, *numbers, math.inf), max(high, *numbers, -math.inf)
            flagged += [(name, flags)] if (flags := sample.flags) else []
            self._count(sample)
            yield line

    def _count(self, sample: RunSample) -> None:
        self.n += 1
        self.responses += sum(map(len, sample.responses))
        if sample.error is not None and not any(value is not None for one in sample.values.values() for value in one):
            self.result.errors += 1
            if len(self.result.failures) < MOST_LISTED:
                self.result.failures.append({"id": sample.sample.id, "error": sample.error})


def write_run(
    folder: RunFolder,
    about: Mapping[str, Any],
    session: SessionEntry,
    tasks: Iterable[ConvertedTask],
    benchmarks: Iterable[BenchmarkResult] = (),
) -> None:
    """`about` is manifest.json without tasks and sessions; `benchmarks` are made once all tasks are written."""
    entries, results = {}, {}
    for task in tasks:
        name = task.result.task
        entries[name], results[name] = asdict(task.write(folder, about["model"]["name"])), task.result.to_dict()
        session.computed += task.responses
        session.failed += task.result.errors
    session.requested = session.computed
    folder.write(RESULTS, {"tasks": results, "benchmarks": {mean.benchmark: mean.to_dict() for mean in benchmarks}})
    folder.write(MANIFEST, {**about, "fresh": False, "tasks": entries, "sessions": [asdict(session)]})


def nested_deeper(data: Any, levels: int) -> bool:
    """Whether lists and objects are nested deeper than so many levels."""
    level = [data]
    for _ in range(levels):
        inner = [list(one.values()) if isinstance(one, dict) else one for one in level]
        level = [part for one in inner if isinstance(one, (list, tuple)) for part in one]
        if not level:
            return False
    return True
