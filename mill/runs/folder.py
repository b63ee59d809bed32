"""Where a run lives: `<output_dir>/<model>-<identity>/<settings>/`, and the files in it.

manifest.json          what was run: model, settings, tasks, versions, and one entry for each session
record/*.jsonl         answers, append-only, one file for each process
samples/<task>.jsonl   samples with prompts, targets, answers and values
results.json           scores
parts/*.json           what each process had to say of manifest and results; see shared.py
working/*.json         who is at work; see turns.py
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mill.api.errors import RunError
from mill.api.storage import read_bytes, slug, unique_name, write_json
from mill.api.validate import convert, parse_json
from mill.runs.schema import Manifest, Results, View, checked, decode_floats, refuse_misnamed

MANIFEST, RESULTS, SAMPLES = "manifest.json", "results.json", "samples"
LONGEST_NAME = 120
LONGEST_LABEL = 80


@dataclass(frozen=True)
class RunFolder:
    """A run's folder. `root` is the one that a person named: nothing is written through links below it."""

    path: Path
    root: Path = field(default=Path(), compare=False)

    def __post_init__(self) -> None:
        if self.root == Path():
            object.__setattr__(self, "root", self.path)

    @property
    def other_runs(self) -> list[Path]:
        """The folders of other runs of the same model."""
        parent = self.path.parent
        return (
            [place for place in sorted(parent.iterdir()) if place.is_dir() and place != self.path] if parent.is_dir() else []
        )

    def read(self, name: str) -> dict[str, Any]:
        """manifest.json or results.json; empty where there is none. Sections have their shape, entries may hold anything."""
        found = read_json(self.path / name)
        checked(found, View, self.path / name)
        return found

    def manifest(self) -> dict[str, Any]:
        """What the run was; refused where the file does not say."""
        found = self.read(MANIFEST)
        if not {"model", "tasks", "settings", "sessions"} <= set(found):
            raise RunError(f"{self.path} is not a run: its {MANIFEST} is missing or not whole; `mill ls runs` lists them")
        checked(found, Manifest, self.path / MANIFEST)
        return found

    def results(self) -> Results:
        """The scores; none where the run has not come so far."""
        file = self.path / RESULTS
        sections = read_json(file)
        for name in ("tasks", "benchmarks"):
            if isinstance(sections.get(name), dict):
                sections[name] = {entry: decode_floats(value) for entry, value in sections[name].items()}
        found = convert(sections, Results, file, RunError)
        refuse_misnamed(found.tasks, file)
        refuse_misnamed(found.benchmarks, file)
        return found

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        write_json(self.path / name, content, root=self.root, indent=2)

    def samples_file(self, task: str) -> Path:
        name = slug(task)[:LONGEST_NAME]
        if name != task:  # two names may have one slug
            name += "-" + short_hash({"task": task})
        return self.path / SAMPLES / f"{name}.jsonl"


def run_folder(output_dir: Path, model_name: str, identity: Mapping[str, Any], settings: Mapping[str, Any]) -> RunFolder:
    """The folder of a model with settings; the same for the same question, whatever the tasks and the limit."""
    model = f"{slug(model_name)[:80]}-{short_hash(identity)}"
    name = f"{_label(settings)}-{short_hash(settings)}" if settings else "default"
    return RunFolder(output_dir / model / name, output_dir)


def _label(settings: Mapping[str, Any]) -> str:
    """As many settings as there is room for, each whole: a value that is cut would be another value."""
    shown: list[str] = []
    for name, value in _entries(settings):
        entry = f"{slug(name)}={slug(str(value))}"
        if len("-".join([*shown, entry])) <= LONGEST_LABEL:
            shown.append(entry)
    return "-".join(shown) or "settings"


def _entries(settings: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Each setting by itself, also those inside of others, such as the decoding options."""
    found: list[tuple[str, Any]] = []
    for name, value in settings.items():
        found += _entries(value) if isinstance(value, Mapping) else [(str(name), value)]
    return found


def newest_generation(folder: RunFolder, *, fresh: bool) -> RunFolder:
    """Fresh runs stand beside the earlier ones as `<name>~2`, `<name>~3`; work goes on in the newest."""
    number = 1
    while (folder.path.parent / f"{folder.path.name}~{number + 1}").exists():
        number += 1
    if fresh and (number > 1 or folder.path.exists()):
        number += 1
    return folder if number == 1 else RunFolder(folder.path.parent / f"{folder.path.name}~{number}", folder.root)


def check_writable(output_dir: Path) -> None:
    """Say in one line why nothing can be written to the output folder, before anything is computed.

    A folder that is not there yet is not made here, since the command may still be refused: where it would be made is tried.
    """
    try:
        probe = _nearest(output_dir.absolute()) / f".probe-{unique_name()}"
        probe.write_text("")
        probe.unlink()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise RunError(f"cannot write to the output folder {output_dir}: {why}") from error


def _nearest(folder: Path) -> Path:
    """The folder, or the first one above it that is there."""
    try:
        folder.stat()
    except FileNotFoundError:
        return _nearest(folder.parent)
    return folder


def find_runs(output_dir: Path) -> list[RunFolder]:
    """Every run below an output folder."""
    return [RunFolder(manifest.parent, output_dir) for manifest in sorted(output_dir.glob(f"*/*/{MANIFEST}"))]


def read_json(file: Path) -> dict[str, Any]:
    """An object from a file; empty where there is none."""
    try:
        raw = read_bytes(file)
    except FileNotFoundError:
        return {}
    found = parse_json(raw, file, RunError)
    if not isinstance(found, dict):
        raise RunError(f"{file} does not hold an object")
    return found


def short_hash(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
