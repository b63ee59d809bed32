"""An evaluation run in a report: its scores, warnings and failures, and some of its samples: failed and wrong ones first, so
many of each task, long texts cut."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from mill.report.about import About, manifest_about
from mill.report.scores import result_warnings
from mill.report.tables import number
from mill.store.folder import RESULTS, RunFolder
from mill.store.sample_row import FAILED, PENDING, SampleRow, read_rows
from mill.store.schema import BenchmarkResult, Decision, Results, TaskResult, main_metric
from mill.support.files import json_text

MAX_SAMPLES = 200  # of a task
FEWEST = 5  # of a task, also of runs with many tasks
MAX_IN_RUN = 1000  # of all tasks of a run together
MAX_CHARS = 4000  # of a text
MAX_ERRORS = 20  # different errors of a task
FIRST_IDS = 5  # samples that are named for an error
MAX_CHOICES = 26
_COLUMNS = (
    "id", "category", "status", "flags", "prompt", "target", "response", "reasoning", "extracted", "values", "choices",
    "choice_logprobs", "error",
)  # fmt: skip
MAIN_SCORES = 4  # in the index


@dataclass
class TaskSamples:
    """What a report shows of a samples file, with the number of its lines and its errors."""

    shown: list[SampleRow] = field(default_factory=list)
    total: int = 0
    errors: dict[str, list[str]] = field(default_factory=dict)
    """Error -> the first samples that have it."""
    error_counts: dict[str, int] = field(default_factory=dict)
    other_errors: int = 0
    """Samples whose error is none of the listed ones."""
    unanswered: int = 0

    def failure_lines(self, task: str) -> list[str]:
        """Each error with its count and the first samples that have it."""
        lines = []
        for error, ids in self.errors.items():
            count = self.error_counts[error]
            named = f"{', '.join(ids)}{', ...' if count > len(ids) else ''}"
            lines.append(f"{task}: {count} of {self.total} samples failed ({named}): {error}")
        lines += [f"{task}: {self.other_errors} more failed with other errors"] if self.other_errors else []
        return [*lines, f"{task}: {self.unanswered} of {self.total} samples are not answered"] if self.unanswered else lines

    def to_dict(self) -> dict[str, Any]:
        counts = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "shown"}
        return {"shown": [{name: getattr(row, name) for name in _COLUMNS} for row in self.shown], **counts}


def read_task_samples(file: Path, most: int = MAX_SAMPLES) -> TaskSamples:
    """Read line by line: only what is shown stays in memory. Empty where there is no file, as before a run is scored."""
    found = TaskSamples()
    if not file.exists():
        return found
    ranked = ((_rank(row), number, _shortened(row)) for number, row in enumerate(_counted(file, found)))
    found.shown = [sample for *_, sample in heapq.nsmallest(most, ranked, key=lambda entry: entry[:2])]
    return found


def _counted(file: Path, found: TaskSamples) -> Iterator[SampleRow]:
    for _, row in read_rows(file):
        found.total += 1
        if row.status == PENDING:
            found.unanswered += 1
        elif row.error:
            error = cut(row.error)
            if error in found.errors or len(found.errors) < MAX_ERRORS:
                ids = found.errors.setdefault(error, [])
                ids += [str(row.id)] if len(ids) < FIRST_IDS else []
                found.error_counts[error] = found.error_counts.get(error, 0) + 1
            else:
                found.other_errors += 1
        yield row


def _rank(row: SampleRow) -> float:
    """Failed samples first, then by the first metric that is a number, the worst first; then all others."""
    if row.status == FAILED:
        return -math.inf
    values = (row.mean(metric) for metric in row.values)
    return next((value for value in values if value is not None), math.inf)


def _shortened(row: SampleRow) -> SampleRow:
    """What is shown of a sample, with its texts cut."""
    texts: dict[str, Any] = {name: _text(getattr(row, name)) for name in ("target", "response", "reasoning", "error")}
    return SampleRow(
        id=str(row.id),
        task=row.task,
        category=cut(row.category) if row.category else None,
        status=row.status,
        flags=row.flags,
        prompt=cut(row.prompt),
        extracted=_text(row.chosen if row.extracted is None else row.extracted),
        values={cut(name): repeats for name, repeats in row.values.items()},
        choices=[cut(text, 300) for text in row.choices[:MAX_CHOICES]] if row.choices else None,
        choice_logprobs=row.choice_logprobs,
        keys=[[] for _ in row.keys],
        **texts,
    )


def shown_values(row: SampleRow) -> list[str]:
    """Each metric with its value of every repeat."""
    return [f"{name} {cut(', '.join(map(_value, repeats)))}" for name, repeats in row.values.items()]


def shown_choices(row: SampleRow) -> list[tuple[str, float | None]]:
    """The choices with their log-probabilities; none where those are not known."""
    texts, scores = row.choices or [], row.choice_logprobs or []
    return list(zip(texts, scores, strict=False)) if len(scores) >= len(texts) else []


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, (int, float)) else _text(value) or "-"


def _text(value: Any) -> str | None:
    return None if value is None else cut(value if isinstance(value, str) else json_text(value))


def cut(text: str, most: int = MAX_CHARS) -> str:
    """A long text without its middle, with a note how much that is: a prompt ends with the question, and a response with
    the answer."""
    if len(text) <= most:
        return text
    left_out = len(text) - most
    return f"{text[: most // 2]}\n[… {left_out:,} of {len(text):,} characters left out …]\n{text[len(text) - most // 2 :]}"


@dataclass(frozen=True)
class RunSection:
    """A run as it is read for a report."""

    path: Path
    manifest: Mapping[str, Any]
    results: Results
    samples: dict[str, TaskSamples] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.manifest['model']['name']} on {', '.join(self.manifest['tasks'])}"

    @property
    def when(self) -> str:
        """The start of the last session."""
        return max((str(session.get("started", "")) for session in self.manifest["sessions"]), default="")

    @property
    def about(self) -> About:
        return manifest_about(self.manifest)

    @property
    def computed_by(self) -> list[str]:
        """Which paths of the model gave the answers, in the last session that computed some, and how they were verified."""
        computed = [session for session in self.manifest["sessions"] if session.get("paths")]
        return [f"{stage}: {path}" for session in computed[-1:] for stage, path in session["paths"].items()]

    @property
    def tasks(self) -> list[TaskResult]:
        return list(self.results.tasks.values())

    @property
    def benchmarks(self) -> list[BenchmarkResult]:
        return list(self.results.benchmarks.values())

    @property
    def decisions(self) -> list[Decision]:
        return list(self.results.decisions.values())

    @property
    def unfinished(self) -> str:
        """Why there are no scores, or not those of all tasks; empty for a finished run."""
        missing = [name for name in self.manifest["tasks"] if name not in self.results.tasks]
        if not missing:
            return ""
        ended = [str(session.get("ended", "")) for session in self.manifest["sessions"]][-1:]
        how = f" The last session {_ENDED.get(ended[0], 'did not end')}." if ended else " No session has ended yet."
        what = f"it has no {RESULTS}" if not self.results.tasks else f"{', '.join(missing)} {_have(missing)} no score"
        return f"This run was not finished: {what}.{how} The same command resumes it."

    @property
    def main_scores(self) -> str:
        """The main metric of each benchmark, or of each task that belongs to none."""
        inside = {task for mean in self.benchmarks for task in mean.tasks}
        alone = [task for task in self.tasks if task.task not in inside]
        named = [(mean.benchmark, mean.metrics) for mean in self.benchmarks] + [(task.task, task.metrics) for task in alone]
        scores = [
            f"{name} {metric} {number(found[metric].value, 3)}" for name, found in named if (metric := main_metric(found))
        ]
        more = f" and {len(scores) - MAIN_SCORES} more" if len(scores) > MAIN_SCORES else ""
        return ", ".join(scores[:MAIN_SCORES]) + more or "not finished"

    @property
    def warnings(self) -> list[str]:
        """Those of the results, and each error with its count; the samples have all errors, the results the first ones."""
        counted = any(found.total for found in self.samples.values())
        failures = [line for task, found in self.samples.items() for line in found.failure_lines(task)]
        return [*result_warnings(self.tasks, self.benchmarks, self.decisions, failures=not counted), *failures]

    def to_dict(self) -> dict[str, Any]:
        return {
            "run": str(self.path),
            "finished": not self.unfinished,
            "model": self.manifest["model"],
            "settings": self.manifest["settings"],
            "sessions": self.manifest["sessions"],
            "tasks": {name: result.to_dict() for name, result in self.results.tasks.items()},
            "benchmarks": {name: result.to_dict() for name, result in self.results.benchmarks.items()},
            **({"decisions": {one.name: asdict(one) for one in self.decisions}} if self.decisions else {}),
            "samples": {name: found.to_dict() for name, found in self.samples.items()},
        }


_ENDED = {"interrupted": "was interrupted", "failed": "failed", "finished": "finished", "stopped": "stopped at its budget"}


def _have(names: list[str]) -> str:
    return "has" if len(names) == 1 else "have"


def read_run(folder: RunFolder) -> RunSection:
    """Refuses a run whose files are not valid; a run without results is unfinished."""
    manifest, results = folder.manifest(), folder.results()
    names = list(manifest["tasks"])
    most = max(FEWEST, min(MAX_SAMPLES, MAX_IN_RUN // max(1, len(names))))
    samples = {name: read_task_samples(folder.samples_file(name), most) for name in names}
    return RunSection(folder.path, manifest, results, samples)
