"""A run's folder, `<output_dir>/<model>-<identity>/<settings>/`, and the files in it.

manifest.json          what was run: model, settings, tasks, versions, and one entry for each session
record/*.jsonl         responses, append-only, one file for each process
samples/<task>.jsonl   one flat row for each sample; see sample_row.py
results.json           scores
superseded.json        tasks whose scores came of answers that were found to be wrong; record/*.superseded has these
media/*                images, audio and videos of samples that have no file of their own; see samples.py
sessions/*.json        what each process works on, has spent, and adds to manifest and results; see session.py
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mill.api.errors import RunError
from mill.models.prefix.paths import CONTINUOUS, MIXED_ROWS, PACKED, VERIFIED, mixed_rows
from mill.store.schema import Manifest, Results, View, decode_floats, earlier_decisions, refuse_misnamed
from mill.support.files import read_bytes, slug, unique_name, write_json
from mill.support.validate import convert, parse_json

MANIFEST, RESULTS, SAMPLES = "manifest.json", "results.json", "samples"
SUPERSEDED = "superseded.json"
WRONG_PATH = "its answers came of a fast path that was found to be wrong later; run again"
LONGEST_NAME = 120
LONGEST_LABEL = 80


@dataclass(frozen=True)
class RunFolder:
    """A run's folder. `root` is the one that the user named: nothing is written through links below it."""

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
            [folder for folder in sorted(parent.iterdir()) if folder.is_dir() and folder != self.path]
            if parent.is_dir()
            else []
        )

    def read(self, name: str) -> dict[str, Any]:
        """manifest.json or results.json; empty where there is none. The sections are checked, their entries are not."""
        content = read_json(self.path / name)
        convert(content, View, self.path / name, RunError)
        return content

    def manifest(self) -> dict[str, Any]:
        """The whole manifest; refused where it is missing or incomplete."""
        content = self.read(MANIFEST)
        if not {"model", "tasks", "settings", "sessions"} <= set(content):
            raise RunError(f"{self.path} is not a run: its {MANIFEST} is missing or not whole; `mill ls runs` lists them")
        convert(content, Manifest, self.path / MANIFEST, RunError)
        return content

    def results(self) -> Results:
        """The scores; empty where the run was not scored yet."""
        file = self.path / RESULTS
        sections = read_json(file)
        for name in ("tasks", "benchmarks"):
            if isinstance(sections.get(name), dict):
                sections[name] = {entry: decode_floats(value) for entry, value in sections[name].items()}
        sections.setdefault("decisions", earlier_decisions(sections))
        results = convert(sections, Results, file, RunError)
        refuse_misnamed(results.tasks, file)
        refuse_misnamed(results.benchmarks, file)
        superseded = self._superseded()
        for name, result in results.tasks.items():
            notes = [*([WRONG_PATH] if name in superseded else []), *([MIXED_ROWS] if self._mixed_rows() else [])]
            result.warnings[:] = dict.fromkeys([*result.warnings, *notes])
        return results

    def _superseded(self) -> list[str]:
        return list(read_json(self.path / SUPERSEDED))

    def unmark_superseded(self, tasks: Iterable[str]) -> None:
        """These have scores of new answers."""
        left = [name for name in self._superseded() if name not in set(tasks)]
        if left != self._superseded():
            self.write(SUPERSEDED, dict.fromkeys(left, WRONG_PATH))

    def _mixed_rows(self) -> bool:
        """Whether a fast path that was not verified answered a model whose rows it mixed."""
        manifest = self.read(MANIFEST)
        model, identity = _section(manifest, "model"), _section(_section(manifest, "model"), "identity")
        sessions = [one for one in manifest.get("sessions") or [] if isinstance(one, dict)]
        paths = [str(path) for session in sessions for path in _section(session, "paths").values()]
        shared = any(PACKED in path or CONTINUOUS in path for path in paths if VERIFIED not in path)
        known = "shared_prefixes" in identity or identity.get("backend") != "hf"
        return shared and not known and any(mixed_rows(name, str(identity.get("dtype"))) for name in _types(model))

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        write_json(self.path / name, content, root=self.root, indent=2)

    def samples_file(self, task: str) -> Path:
        name = slug(task)[:LONGEST_NAME]
        if name != task:  # two names may have one slug
            name += "-" + short_hash({"task": task})
        return self.path / SAMPLES / f"{name}.jsonl"


def mark_superseded(run: Path, *, root: Path) -> None:
    """The scores that a run has came of answers that were found to be wrong."""
    tasks = read_json(run / RESULTS).get("tasks") or {}
    write_json(run / SUPERSEDED, dict.fromkeys(tasks, WRONG_PATH), root=root, indent=2)


def _section(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A part of a file that is not checked yet."""
    section = content.get(name)
    return section if isinstance(section, dict) else {}


def _types(model: Mapping[str, Any]) -> list[str]:
    """What may name the architecture of a recorded model: its name, its path, and the config there."""
    path = str(_section(model, "arguments").get("path", ""))
    names = [str(model.get("name", "")), path]
    try:
        config = json.loads((Path(path) / "config.json").read_bytes())
        names.append(str(config.get("text_config", config).get("model_type")))
    except (OSError, ValueError, AttributeError):  # on a hub, moved, or removed
        pass
    return names


def run_folder(output_dir: Path, model_name: str, identity: Mapping[str, Any], settings: Mapping[str, Any]) -> RunFolder:
    """The folder of a model with settings; tasks and limit are not part of it."""
    model = f"{slug(model_name)[:80]}-{short_hash(identity)}"
    name = f"{_label(settings)}-{short_hash(settings)}" if settings else "default"
    return RunFolder(output_dir / model / name, output_dir)


def _label(settings: Mapping[str, Any]) -> str:
    """As many settings as fit, each whole: a truncated value would be another value."""
    shown: list[str] = []
    for name, value in _entries(settings):
        entry = f"{slug(name)}={slug(str(value))}"
        if len("-".join([*shown, entry])) <= LONGEST_LABEL:
            shown.append(entry)
    return "-".join(shown) or "settings"


def _entries(settings: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Each setting by itself, also nested ones, such as the decoding options."""
    pairs: list[tuple[str, Any]] = []
    for name, value in settings.items():
        pairs += _entries(value) if isinstance(value, Mapping) else [(str(name), value)]
    return pairs


def newest_generation(folder: RunFolder, *, fresh: bool) -> RunFolder:
    """Fresh runs are stored beside the earlier ones as `<name>~2`, `<name>~3`; the newest is the one that is resumed."""
    number = 1
    while (folder.path.parent / f"{folder.path.name}~{number + 1}").exists():
        number += 1
    if fresh and (number > 1 or folder.path.exists()):
        number += 1
    return folder if number == 1 else RunFolder(folder.path.parent / f"{folder.path.name}~{number}", folder.root)


def check_writable(output_dir: Path) -> None:
    """Refuse an output folder that cannot be written to, before anything is computed.

    A missing folder is not made here, since the command may still be refused: its nearest existing parent is tried.
    """
    try:
        probe = _nearest(output_dir.absolute()) / f".probe-{unique_name()}"
        probe.write_text("")
        probe.unlink()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise RunError(f"cannot write to the output folder {output_dir}: {why}") from error


def _nearest(folder: Path) -> Path:
    """The folder, or its nearest parent that exists."""
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
    content = parse_json(raw, file, RunError)
    if not isinstance(content, dict):
        raise RunError(f"{file} does not hold an object")
    return content


def short_hash(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
