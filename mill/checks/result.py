"""The result of a check and its file `check.json`, which reports, gates and other programs read. A row, category or series
in it that does not fit is refused with the name of the field."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from mill.api.engine import Answered
from mill.api.errors import RunError
from mill.metrics.estimate import Estimate
from mill.store.folder import short_hash
from mill.store.schema import Decision
from mill.support.files import json_text, read_bytes, slug, write_atomically
from mill.support.validate import Number, convert, parse_json

Count = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)] | Literal["NaN"]
Rate = tuple[Share | None, Share | None, Share | None, Count]
Score = tuple[Number | None, Number | None, Number | None, Count]
Severity = Literal["identical", "minor", "moderate", "severe", "empty", "failed"]


class TokenFile(Struct):
    text: str
    logprob: Number
    top: list[tuple[int | str, Number]] = []


class DivergenceFile(Struct):
    char: int
    token: Annotated[int, Meta(ge=1)] | None = None
    margin: Number | None = None
    tokens: tuple[TokenFile | None, TokenFile | None] | None = None


class ComparedChoice(Struct):
    """A choice of multiple choice, with its log-probability on both sides."""

    text: str
    logprobs: tuple[Number, Number]


class ComparedRow(Struct):
    """A sample answered by two engines."""

    task: str
    id: str
    category: str
    prompt: str
    texts: tuple[str, str]
    extracted: tuple[Any, Any]
    right: tuple[bool | None, bool | None]
    errors: tuple[str | None, str | None]
    severity: Severity
    similarity: Number
    flipped: bool | None
    gold: Any = None
    divergence: DivergenceFile | None = None
    kl: dict[str, Number] | None = None
    kl_positions: list[Number] | None = None
    choices: list[ComparedChoice] | None = None


class RepeatedRow(Struct):
    """A sample answered several times by one engine; `texts` are the two most common answers."""

    task: str
    id: str
    category: str
    prompt: str
    share: Number
    distinct: Annotated[int, Meta(ge=1)]
    failed: Count
    texts: Annotated[list[str], Meta(min_length=1, max_length=2)]
    errors: Annotated[list[str | None], Meta(min_length=1, max_length=2)]
    times: list[Count]
    score_range: Number | None = None
    divergence: DivergenceFile | None = None


class Group(Struct):
    """A category of a task. Rates are value, low, high and n."""

    task: str
    category: str
    n: Count
    match_rate: Rate | UnsetType = UNSET
    flip_rate: Rate | UnsetType = UNSET
    acc_baseline: Rate | UnsetType = UNSET
    acc: Rate | UnsetType = UNSET
    score_baseline: Score | UnsetType = UNSET
    score: Score | UnsetType = UNSET


class PositionFile(Struct):
    position: Annotated[int, Meta(ge=1)]
    agreement: Number
    n: Annotated[int, Meta(ge=1)]


class ErrorFile(Struct):
    id: str
    error: str


class SeriesData(Struct, frozen=True):
    kl: tuple[Number, ...] = ()
    agreement_by_position: tuple[PositionFile, ...] = ()
    errors: tuple[ErrorFile, ...] = ()


FILE, FOLDER, VERSION = "check.json", "checks", 2


@dataclass
class Variant:
    """The result for one model, level of load or group of passes.

    `metrics` are estimates by name, `p_values` those of metrics with a test, `counts` plain numbers, `series` the data of
    charts, `rows` one entry per sample. `unmeasured` has the reason why a metric could not be measured on all samples, which
    breaks rules on it. `partial` has what a metric leaves out without a fault of the engine, `inconclusive` why one gives no
    verdict. `verdict` is a sentence or two.
    """

    label: str
    model: str = ""
    backend: str = ""
    run: str = ""
    size: int | None = None
    metrics: dict[str, Estimate] = field(default_factory=dict)
    p_values: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    groups: list[dict[str, Any]] = field(default_factory=list)
    series: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unmeasured: dict[str, str] = field(default_factory=dict)
    partial: dict[str, str] = field(default_factory=dict)
    inconclusive: dict[str, str] = field(default_factory=dict)
    verdict: str = ""
    decision: Decision | None = None
    """A claim that was decided on random samples."""
    answered: Answered = field(default_factory=Answered)


@dataclass
class Check:
    command: Annotated[str, Meta(pattern=r"^[a-z][a-z_-]*$")]
    tasks: list[str]
    variants: list[Variant]
    baseline: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    baseline_model: str = ""
    baseline_backend: str = ""
    baseline_run: str = ""
    """Those of a baseline that is not one of the variants."""
    baseline_answered: Answered = field(default_factory=Answered)
    created: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    version: int = VERSION

    @property
    def name(self) -> str:
        """The name in messages."""
        return f"{self.command} on {', '.join(self.tasks)}"

    @property
    def against(self) -> bool:
        """Whether the baseline is not one of the variants."""
        return bool(self.baseline) and self.baseline not in [variant.label for variant in self.variants]

    def folder(self, output_dir: Path) -> Path:
        """The same check run again writes to the same folder."""
        labels = [variant.label for variant in self.variants]
        runs = [variant.run for variant in self.variants]
        name = "-".join([self.command, *labels])[:60]
        identity = {"labels": labels, "runs": runs, "tasks": self.tasks, "settings": self.settings}
        return output_dir / FOLDER / f"{slug(name)}-{short_hash(identity)}"

    def save(self, output_dir: Path) -> Path:
        """Write the check below an output folder and return its file."""
        file = self.folder(output_dir) / FILE
        write_atomically(file, self.to_json(), root=output_dir)
        return file

    def to_json(self) -> str:
        return json_text(asdict(self), indent=1) + "\n"


def answered_lines(check: Check) -> list[str]:
    """How old the answers of each model are, and what gave them, as far as the check knows."""
    sides = {check.baseline: check.baseline_answered, **{variant.label: variant.answered for variant in check.variants}}
    return [f"{label}: answers {answered}" for label, answered in sides.items() if answered.since]


def read_check(path: Path) -> Check:
    """Read a check from its file or folder; another version or an invalid field raises."""
    file = path / FILE if path.is_dir() else path
    try:
        data = parse_json(read_bytes(file), file, RunError)
    except FileNotFoundError:
        raise RunError(f"{path} contains no check: there is no {FILE} in it") from None
    if isinstance(data, dict) and data.get("version") != VERSION:
        raise RunError(f"{file} has version {data.get('version')}, this mill reads version {VERSION}: run the check again")
    for variant in data["variants"] if isinstance(data, dict) and isinstance(data.get("variants"), list) else ():
        if isinstance(variant, dict):
            variant |= {name: _with_floats(variant[name]) for name in ("metrics", "p_values") if name in variant}
    check: Check = convert(data, Check, file, RunError)
    for number, variant in enumerate(check.variants):
        where = f"{file}: variants[{number}]"
        convert(variant.groups, list[Group], f"{where}.groups", RunError)
        convert(variant.series, SeriesData, f"{where}.series", RunError)
        for index, row in enumerate(variant.rows):
            convert(row, RepeatedRow if "distinct" in row else ComparedRow, f"{where}.rows[{index}]", RunError)
    return check


def find_checks(path: Path) -> list[Path]:
    """The checks in a folder: its own, or all below it, oldest first."""
    if path.is_file() or (path / FILE).is_file():
        return [path]
    files = sorted((file for file in path.rglob(FILE) if file.is_file()), key=lambda file: (file.lstat().st_mtime, file))
    if not files:
        if not path.exists():
            raise RunError(f"{path} does not exist")
        raise RunError(f"{path} contains no check; `mill compare`, `sweep`, `diff`, `stress` and `determinism` write them")
    return files


def _with_floats(value: Any) -> Any:
    """With NaN and infinity, which are texts in JSON, as numbers."""
    if isinstance(value, dict):
        return {name: _with_floats(part) for name, part in value.items()}
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value
