"""What each file of a run must hold. Whatever is read back is checked against these types; fields that they do not have,
such as those of a newer version, are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mill.api.errors import RunError
from mill.api.response import Response
from mill.api.validate import Number, convert
from mill.execute.executor import Tally


@dataclass
class ModelEntry:
    name: str
    backend: str = ""


@dataclass
class TaskEntry:
    """A task in the manifest."""

    version: int
    n: int
    total: int
    data_hash: str
    asked: str = ""
    task_type: str = ""
    n_shots: int = 0
    warnings: list[str] = field(default_factory=list)


@dataclass
class SessionEntry(Tally):
    id: str = ""
    order: int = 0
    started: str = "-"
    ended: str = "-"
    seconds: float = 0.0
    paths: dict[str, str] = field(default_factory=dict)


@dataclass
class Manifest:
    """manifest.json."""

    model: ModelEntry
    settings: dict[str, Any]
    tasks: dict[str, TaskEntry]
    sessions: list[SessionEntry]
    fresh: bool = False
    condition: str = ""


@dataclass
class StartedManifest:
    """A manifest that may not be whole yet."""

    fresh: bool = False


@dataclass
class EstimateEntry:
    value: Number
    stderr: Number | None
    low: Number | None
    high: Number | None
    n: int


@dataclass
class FailureEntry:
    id: str | int
    error: str


@dataclass
class TaskResultEntry:
    """A task's scores in results.json."""

    task: str
    task_type: str
    version: int
    n_shots: int
    n: int
    total: int
    errors: int
    truncated: int
    cut_short: int
    metrics: dict[str, EstimateEntry]
    warnings: list[str] = field(default_factory=list)
    failures: list[FailureEntry] = field(default_factory=list)
    data_hash: str = ""
    empty: int = 0
    filtered: int = 0


@dataclass
class BenchmarkEntry:
    """A benchmark's mean in results.json."""

    benchmark: str
    tasks: list[str]
    n: int
    total: int
    errors: int
    metrics: dict[str, EstimateEntry]
    missing: list[str] = field(default_factory=list)


@dataclass
class Results:
    """results.json."""

    tasks: dict[str, TaskResultEntry] = field(default_factory=dict)
    benchmarks: dict[str, BenchmarkEntry] = field(default_factory=dict)


@dataclass
class View:
    """The sections of manifest.json and results.json, whatever their entries hold."""

    tasks: dict[str, Any] = field(default_factory=dict)
    benchmarks: dict[str, Any] = field(default_factory=dict)
    sessions: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class PartEntry:
    """An entry of parts/*.json."""

    number: int
    weight: int
    value: Any


Part = dict[str, dict[str, PartEntry]]
"""What a part says of one file: section -> name of an entry -> entry."""


@dataclass
class ResponseEntry:
    """An answer, as `Response.to_dict` writes it."""

    text: str | None = None
    score: Number | None = None
    is_greedy: bool | None = None
    label: str | None = None
    ranking: list[tuple[str, Number]] | None = None
    tokens: list[tuple[int | None, str, Number, list[tuple[int | str, Number]]]] | None = None
    error: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    truncated_tokens: int = 0
    retries: int = 0
    seconds: Number | None = None
    first_token_s: Number | None = None
    distribution: str | None = None


@dataclass
class RecordLine:
    """A line of record/*.jsonl. Those of the first version said neither `deterministic` nor `failed`."""

    key: str
    response: ResponseEntry
    kind: str = ""
    deterministic: bool = False


@dataclass
class SampleLine:
    """A line of samples/*.jsonl; `keys` and `responses` have a list for each repeat."""

    id: str | int
    target: Any
    prompt: str
    continuations: list[str]
    keys: list[list[str]]
    responses: list[list[ResponseEntry]]
    doc: dict[str, Any]
    judgements: list[list[str | None]] = field(default_factory=list)
    escaped: bool = False
    """Whether lone surrogates stand in this line as `\\udXXX`, and each backslash doubled: see samples.py."""


@dataclass
class WorkingEntry:
    """working/*.json: a process that works on a run, or waits for its turn."""

    host: str
    machine: str
    pid: int
    tasks: list[str]
    working: bool
    beat: int
    born: str | None = None


def checked(data: Mapping[str, Any], kind: type[Any], where: object) -> Mapping[str, Any]:
    """`data` itself, with fields that mill does not know, once it fits."""
    convert(data, kind, where, RunError)
    return data


def refuse_misnamed(entries: Mapping[str, Any], where: object) -> None:
    """Results stand under the names of what they are of: under another one they would count twice."""
    for name, entry in entries.items():
        of = {TaskResultEntry: "task", BenchmarkEntry: "benchmark"}.get(type(entry))
        if of is not None and getattr(entry, of) != name:
            raise RunError(f"{where} is not valid: {name}.{of}: it is {getattr(entry, of)!r}, which is another one")


def read_response(data: Any, where: object) -> Response:
    return Response.from_dict(checked(data, ResponseEntry, where))
