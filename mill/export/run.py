"""A run as it is exported: its identity, parameters, scores and samples, without keys.

Text comes from models, servers and files of others: names and parameters are made printable, and samples have no lone
surrogates, which no other format can store.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

from mill.api.errors import RunError
from mill.api.response import Response
from mill.report.collect import score_rows
from mill.report.sections import mapping
from mill.runs.files import shown_command
from mill.store.folder import MANIFEST, RunFolder, find_runs
from mill.store.sample_row import FAILED as FAILED_SAMPLE
from mill.store.sample_row import PENDING, SampleRow, columns_of, read_rows, whole_row
from mill.store.schema import BenchmarkResult, Manifest, Results, SessionEntry, TaskResult
from mill.store.session import spent_so_far
from mill.support.files import json_text
from mill.support.secrets import redact, redact_spec, redact_text
from mill.support.terminal import printable, utf8, warn
from mill.support.validate import convert

FINISHED, STOPPED, INTERRUPTED = "finished", "stopped", "interrupted"
FAILED, UNFINISHED = "failed", "unfinished"


@dataclass
class SampleCount:
    """The samples of a task: those that are `done`, of which `failed` have an error, and those `unanswered` as yet.
    `responses` counts all requests."""

    done: int = 0
    failed: int = 0
    unanswered: int = 0
    responses: int = 0
    decimal_ids: bool = True
    """Whether all ids are whole numbers."""
    metrics: dict[str, None] = field(default_factory=dict)
    """The names of the metrics that samples have values of."""

    @property
    def planned(self) -> int:
        return self.done + self.unanswered

    def add(self, row: SampleRow) -> None:
        pending = row.status == PENDING
        self.done += not pending
        self.unanswered += pending
        self.failed += row.status == FAILED_SAMPLE
        self.responses += sum(map(len, row.responses))
        self.decimal_ids = self.decimal_ids and is_decimal(row.id)
        self.metrics |= dict.fromkeys(row.values)


@dataclass(frozen=True)
class ExportedRun:
    """A run that is exported; `read` makes one of a folder."""

    folder: RunFolder
    manifest: Mapping[str, Any]
    results: Results

    @classmethod
    def read(cls, folder: RunFolder) -> ExportedRun:
        return cls(folder, folder.manifest(), folder.results())

    @cached_property
    def uid(self) -> str:
        """The same for this run wherever its folder is, and after it was extended; another for every other run."""
        given = self.manifest.get("id")
        first = min(self.sessions, key=lambda session: (session.order, session.id), default=None)
        own = str(given) if given else f"{'/'.join(self.folder.path.absolute().parts[-2:])} {first.id if first else ''}"
        return hashlib.blake2b(utf8(own), digest_size=8).hexdigest()

    @property
    def model(self) -> str:
        return clean(self.manifest["model"]["name"])

    @property
    def backend(self) -> str:
        return clean(self.manifest["model"].get("backend") or "")

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the model. Those in a manifest have no keys; a file of another origin may have some."""
        return redact(mapping(self.manifest["model"].get("arguments")))

    @property
    def settings(self) -> dict[str, Any]:
        return redact(self.manifest["settings"])

    @property
    def versions(self) -> dict[str, str]:
        return {clean(name): clean(value) for name, value in mapping(self.manifest.get("versions")).items()}

    @property
    def name(self) -> str:
        """For lists: the model and the folder of the settings."""
        return f"{self.model} {clean(self.folder.path.absolute().name)}"

    @cached_property
    def sessions(self) -> list[SessionEntry]:
        found: Manifest = convert(self.manifest, Manifest, self.folder.path / MANIFEST, RunError)
        return found.sessions

    @property
    def started(self) -> datetime:
        """The start of the first session, in UTC; the epoch where no session has ended yet and for a damaged time."""
        return min((_time(session.started) for session in self.sessions), default=_EPOCH)

    @property
    def ended(self) -> datetime:
        """The end of the last session."""
        ends = [_time(session.started).timestamp() + max(0.0, session.seconds) for session in self.sessions]
        return datetime.fromtimestamp(min(max(ends, default=0.0), _LATEST), timezone.utc)

    @cached_property
    def seconds(self) -> float:
        """The time in which processes worked on the run, in all sessions, also those that were killed."""
        try:
            return spent_so_far(self.folder)[1]
        except RunError:  # a damaged file of one process: the manifest has the sessions that ended
            return sum(max(0.0, session.seconds) for session in self.sessions)

    @property
    def status(self) -> str:
        """`finished` where every task has a score of all its samples, `stopped` where the budget of the run left some out;
        else how the last session ended."""
        if self.manifest["tasks"] and all(name in self.results.tasks for name in self.manifest["tasks"]):
            left_out = any(result.pending or result.not_judged for result in self.results.tasks.values())
            return STOPPED if left_out else FINISHED
        last = self.sessions[-1].ended if self.sessions else UNFINISHED
        return last if last in (STOPPED, INTERRUPTED, FAILED) else UNFINISHED

    @property
    def command(self) -> str:
        """The command of the last session."""
        commands = [session.get("command") for session in self.manifest["sessions"]]
        return clean(shown_command(_words(str(commands[-1])))) if commands and commands[-1] else ""

    @property
    def judge(self) -> str:
        return clean(redact_spec(str(self.manifest.get("judge") or "")))

    @property
    def tasks(self) -> list[str]:
        return list(self.manifest["tasks"])

    @property
    def scored(self) -> list[TaskResult | BenchmarkResult]:
        """The results of tasks, then those of benchmarks."""
        return [*self.results.tasks.values(), *self.results.benchmarks.values()]

    def score_rows(self) -> list[dict[str, Any]]:
        """The rows of `mill collect`."""
        return [{**row, "run": self.uid} for row in score_rows(self.model, self.folder, self.results)]

    def rows(self, task: str) -> Iterator[SampleRow]:
        """The samples of a task as in its file, without lone surrogates; none where there is no file yet."""
        file = self.folder.samples_file(task)
        if file.exists():
            for where, row in read_rows(file):
                clean_row = without_surrogates({**columns_of(row), "escaped": False}) if row.escaped else None
                yield row if clean_row is None else whole_row(clean_row, where)

    @cached_property
    def counts(self) -> dict[str, SampleCount]:
        """The samples of each task, counted."""
        counts = {}
        for task in self.tasks:
            counts[task] = SampleCount()
            for row in self.rows(task):
                counts[task].add(row)
        return counts


def select_runs(paths: list[Path]) -> tuple[list[ExportedRun], int]:
    """The runs at or below these paths, each once, and how many damaged ones were left out, with a warning."""
    runs: dict[Path, ExportedRun] = {}
    left_out = 0
    for path in paths:
        if (path / MANIFEST).exists():
            runs[path.resolve()] = ExportedRun.read(RunFolder(path))
            continue
        if not path.is_dir():
            raise RunError(f"{path} does not exist" if not path.exists() else f"{path} is no folder of a run")
        found = [RunFolder(file.parent, path) for file in sorted(path.glob(f"*/{MANIFEST}"))] + find_runs(path)
        if not found:
            raise RunError(f"{path} contains no run; `mill ls runs --output_dir {shlex.quote(str(path))}` lists them")
        for folder in found:
            try:
                runs[folder.path.resolve()] = ExportedRun.read(folder)
            except RunError as error:
                left_out += 1
                warn(f"left out: {error}")
    if not runs:
        raise RunError("none of the runs can be read")
    return list(runs.values()), left_out


def result_name(result: TaskResult | BenchmarkResult) -> str:
    return result.task if isinstance(result, TaskResult) else result.benchmark


def is_number(value: Any) -> bool:
    """Whether it is a number as mill writes them to JSON."""
    return (isinstance(value, (int, float)) and not isinstance(value, bool)) or value in ("NaN", "Infinity", "-Infinity")


def is_decimal(text: Any) -> bool:
    """Whether an id is a whole number in its usual spelling: no two ids are the same number then."""
    return str(text).isascii() and str(text).isdigit() and len(str(text)) < 16 and str(int(text)) == str(text)


def clean(text: Any) -> str:
    """A text that may be stored and shown anywhere: no keys, and control characters and lone surrogates as escapes."""
    return printable(redact_text(text if isinstance(text, str) else json_text(text)))


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested mappings as one, `settings.gen_kwargs.temperature`; empty values are left out."""
    flat: dict[str, str] = {}
    for key, value in values.items():
        name = f"{prefix}{clean(key)}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}.")
        elif value not in (None, "", [], ()):
            flat[name] = clean(value)
    return flat


def without_surrogates(data: Any) -> Any:
    """The same data; a lone surrogate is `\\udXXX` in it."""
    if isinstance(data, str):
        return utf8(data).decode()
    if isinstance(data, dict):
        return {without_surrogates(key): without_surrogates(value) for key, value in data.items()}
    return [without_surrogates(value) for value in data] if isinstance(data, list) else data


_EPOCH = datetime.fromtimestamp(0, timezone.utc)
_LATEST = 253402300799  # the last second of the year 9999


def _words(command: str) -> list[str]:
    """The words of a recorded command. Those of earlier versions are not quoted."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command.split(" ")
    return words if shlex.join(words) == command else command.split(" ")


def _time(text: str) -> datetime:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
    except ValueError:
        return _EPOCH


def shown_text(responses: Sequence[Response]) -> str | None:
    """The text or label of the last response; None for log-probabilities and errors."""
    if not responses:
        return None
    return responses[-1].text if responses[-1].text is not None else responses[-1].label


def repeat_values(row: SampleRow, repeat: int) -> dict[str, Any]:
    """The values of a repeat, as its file has them: numbers, texts, lists or mappings of numbers."""
    return {name: values[repeat] for name, values in row.values.items() if repeat < len(values)}


def target_text(row: SampleRow) -> str:
    return "" if row.target is None else str(row.target)
