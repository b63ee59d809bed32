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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mill.api.errors import RunError
from mill.api.storage import slug, unique_name, write_atomically

MANIFEST, RESULTS, SAMPLES = "manifest.json", "results.json", "samples"
LONGEST_NAME = 120


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def siblings(self) -> list[Path]:
        """The folders of other runs of the same model."""
        parent = self.path.parent
        return (
            [place for place in sorted(parent.iterdir()) if place.is_dir() and place != self.path] if parent.is_dir() else []
        )

    def read(self, name: str) -> dict[str, Any]:
        return read_json(self.path / name)

    def manifest(self) -> dict[str, Any]:
        """What the run was; refused where the file does not say."""
        found = self.read(MANIFEST)
        if not {"model", "tasks", "settings", "sessions"} <= set(found):
            raise RunError(f"{self.path} is not a run: its {MANIFEST} is missing or not whole; `mill ls runs` lists them")
        return found

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        write_atomically(self.path / name, json.dumps(content, indent=2, ensure_ascii=False) + "\n")

    def samples_file(self, task: str) -> Path:
        name = slug(task)[:LONGEST_NAME]
        if name != task:  # two names may have one slug
            name += "-" + short_hash({"task": task})
        return self.path / SAMPLES / f"{name}.jsonl"


def run_folder(output_dir: Path, model_name: str, identity: Mapping[str, Any], settings: Mapping[str, Any]) -> RunFolder:
    """The folder of a model with settings; the same for the same question, whatever the tasks and the limit."""
    model = f"{slug(model_name)[:80]}-{short_hash(identity)}"
    label = "-".join(f"{slug(name)}={slug(_show(value))}"[:40] for name, value in settings.items()) or "default"
    if len(label) > 80:
        label = label[:80]
    name = label if label == "default" else f"{label}-{short_hash(settings)}"
    return RunFolder(output_dir / model / name)


def newest_generation(folder: RunFolder, *, fresh: bool) -> RunFolder:
    """Fresh runs stand beside the earlier ones as `<name>~2`, `<name>~3`; work goes on in the newest."""
    number = 1
    while (folder.path.parent / f"{folder.path.name}~{number + 1}").exists():
        number += 1
    if fresh and (number > 1 or folder.path.exists()):
        number += 1
    return folder if number == 1 else RunFolder(folder.path.parent / f"{folder.path.name}~{number}")


def check_writable(output_dir: Path) -> None:
    """Make the output folder, or say in one line why that does not work, before anything is computed."""
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        probe = output_dir / f".probe-{unique_name()}"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise RunError(f"cannot write to the output folder {output_dir}: {error.strerror or error}") from error


def find_runs(output_dir: Path) -> list[RunFolder]:
    """Every run below an output folder."""
    return [RunFolder(manifest.parent) for manifest in sorted(output_dir.glob(f"*/*/{MANIFEST}"))]


def read_json(file: Path) -> dict[str, Any]:
    """An object from a file; empty where there is none."""
    try:
        found = json.loads(file.read_text(encoding="utf-8", errors="surrogatepass"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RunError(f"cannot read {file}: {error}") from error
    if not isinstance(found, dict):
        raise RunError(f"{file} does not hold an object")
    return found


def short_hash(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _show(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str) if isinstance(value, dict) else str(value)
