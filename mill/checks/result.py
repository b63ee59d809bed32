"""What a check found, as a file that reports, gates and other programs read: `check.json`."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mill.api.errors import RunError
from mill.api.response import encode_float
from mill.api.storage import slug, write_atomically
from mill.metrics.estimate import Estimate
from mill.runs.folder import read_json, short_hash
from mill.runs.results import read_estimate

FILE, FOLDER, VERSION = "check.json", "checks", 1


@dataclass
class Variant:
    """One side of a check: a model against the baseline, a level of load, a way of repeating.

    `figures` are estimates by name, `p_values` of those that have a test, `counts` plain numbers, `series` what charts are
    drawn from, `rows` one entry a sample.
    """

    label: str
    model: str = ""
    backend: str = ""
    run: str = ""
    size: int | None = None
    figures: dict[str, Estimate] = field(default_factory=dict)
    p_values: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    groups: list[dict[str, Any]] = field(default_factory=list)
    series: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class Check:
    command: str
    tasks: list[str]
    variants: list[Variant]
    baseline: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    created: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    version: int = VERSION

    @property
    def against(self) -> bool:
        """Whether the variants are held against something that is none of them."""
        return bool(self.baseline) and self.baseline not in [variant.label for variant in self.variants]

    def folder(self, output_dir: Path) -> Path:
        """One folder for one question: asked again, it is answered in the same place."""
        labels = [variant.label for variant in self.variants]
        runs = [variant.run for variant in self.variants]
        name = "-".join([self.command, *labels])[:60]
        what = {"labels": labels, "runs": runs, "tasks": self.tasks, "settings": self.settings}
        return output_dir / FOLDER / f"{slug(name)}-{short_hash(what)}"

    def save(self, output_dir: Path) -> Path:
        """Write the check below an output folder and return its file."""
        file = self.folder(output_dir) / FILE
        write_atomically(file, self.to_json(), root=output_dir)
        return file

    def to_json(self) -> str:
        return json.dumps(_plain(asdict(self)), ensure_ascii=False, indent=1) + "\n"


def read_check(place: Path) -> Check:
    """A check from its file or its folder; one of another version is refused."""
    file = place / FILE if place.is_dir() else place
    if not file.exists():
        raise RunError(f"{place} holds no check: there is no {FILE} in it")
    data = read_json(file)
    if data.get("version") != VERSION:
        raise RunError(f"{file} is of version {data.get('version')}, this mill reads version {VERSION}: run the check again")
    try:
        variants = [_variant(one) for one in data["variants"]]
        return Check(**{**data, "variants": variants, "tasks": list(data["tasks"])})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{file} is not whole: {error}") from error


def _variant(data: dict[str, Any]) -> Variant:
    figures = {name: read_estimate(value) for name, value in data["figures"].items()}
    p_values = {name: float(value) for name, value in data["p_values"].items()}
    return Variant(**{**data, "figures": figures, "p_values": p_values})


def find_checks(place: Path) -> list[Path]:
    """The checks in a folder: the one it holds itself, or all below it, oldest first."""
    if place.is_file() or (place / FILE).exists():
        return [place]
    found = sorted(place.rglob(FILE), key=lambda file: file.stat().st_mtime)
    if not found:
        raise RunError(f"{place} holds no check; `mill compare`, `sweep`, `diff`, `stress` and `determinism` write them")
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return encode_float(value) if isinstance(value, float) else value
