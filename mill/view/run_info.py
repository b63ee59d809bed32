"""A run as the viewer lists it: its manifest and results, and which process works on it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mill.api.errors import MillError
from mill.api.task import RenderSettings
from mill.report.score_diff import flat_settings
from mill.score.recorded_run import distinguishing_arguments
from mill.store.folder import MANIFEST, RESULTS, RunFolder
from mill.store.schema import Results
from mill.support.files import json_text

MILL = "mill"
Signature = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True)
class RunInfo:
    """`uid` names the run in URLs: a hash of its path below the folder that is viewed. `error` is why it cannot be read."""

    uid: str
    name: str
    path: Path
    signature: Signature
    tool: str = MILL
    manifest: Mapping[str, Any] = field(default_factory=dict)
    results: Results = field(default_factory=Results)
    error: str = ""

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.path)

    @property
    def model(self) -> str:
        return str(self.manifest.get("model", {}).get("name", self.name))

    @property
    def model_path(self) -> Path | None:
        """The folder or file of a local model, also where the run named it from its own working folder."""
        given = ((self.manifest.get("model") or {}).get("arguments") or {}).get("path")
        if not isinstance(given, str) or not given:
            return None
        sessions = self.manifest.get("sessions") or [{}]
        folders = [Path(str(session["cwd"])) for session in sessions[-1:] if session.get("cwd")]
        try:
            return next((path for path in [*(folder / given for folder in folders), Path(given)] if path.exists()), None)
        except (OSError, ValueError):  # a name that no file system has
            return None

    @property
    def tasks(self) -> list[str]:
        return list(self.manifest.get("tasks", {}))

    @property
    def settings(self) -> dict[str, Any]:
        """Those that differ from their defaults."""
        given = self.manifest.get("settings", {})
        if self.tool != MILL:
            return dict(given)
        defaults = json.loads(json_text(vars(RenderSettings())))
        return {name: value for name, value in given.items() if value != defaults.get(name)}

    @property
    def warnings(self) -> list[str]:
        """Why it cannot be read, and of a log of another tool what of it cannot."""
        found = [self.error] if self.error else []
        if self.tool != MILL:
            found += [text for entry in self.manifest.get("tasks", {}).values() for text in entry.get("warnings", [])]
        return [f"{self.name}: {text}" for text in found]

    @property
    def of_check(self) -> bool:
        """Whether only a check made it, under a condition such as the number of requests in flight."""
        return bool(self.manifest.get("condition"))


def run_labels(runs: Iterable[RunInfo]) -> dict[str, str]:
    """A name for each run that no other run has: the model, and the arguments or settings in which it differs."""
    listed = list(runs)
    arguments = distinguishing_arguments({str(run.path): run.manifest.get("model") or {"name": run.name} for run in listed})
    models = {run.model: None for run in listed}
    counts = Counter(map(short_name, models))
    known = {model: short_name(model) if counts[short_name(model)] == 1 else model for model in models}
    labels = {run.uid: " ".join(filter(None, (known[run.model], arguments[str(run.path)]))) for run in listed}
    for run in listed:
        if run.tool != MILL:  # one log has one model and few tasks
            more = "" if len(run.tasks) < 3 else f" and {len(run.tasks) - 2} more"
            labels[run.uid] = f"{known[run.model]}: {', '.join(run.tasks[:2])}{more}"
    for same in _groups([run for run in listed if run.tool == MILL], labels):
        flat = {run.uid: flat_settings({**run.settings, "condition": run.manifest.get("condition") or None}) for run in same}
        names = {name for settings in flat.values() for name in settings}
        differing = [name for name in sorted(names) if len({str(settings.get(name)) for settings in flat.values()}) > 1]
        for run in same:
            shown = [f"{name}={flat[run.uid][name]}" for name in differing if name in flat[run.uid]]
            labels[run.uid] += f" ({', '.join(shown)})" if shown else ""
    for same in _groups(listed, labels):  # fresh runs of the same settings, or logs of another tool
        folders = {run.path.name if run.tool == MILL else run.name for run in same}
        for run in same:
            labels[run.uid] += f" ({run.name if len(folders) < len(same) or run.tool != MILL else run.path.name})"
    return labels


def _groups(runs: Sequence[RunInfo], labels: Mapping[str, str]) -> list[list[RunInfo]]:
    """Runs that share a label."""
    found: dict[str, list[RunInfo]] = {}
    for run in runs:
        found.setdefault(labels[run.uid], []).append(run)
    return [same for same in found.values() if len(same) > 1]


def short_name(model: str) -> str:
    """The last part of a path or of a hub name."""
    return model.rstrip("/").rpartition("/")[2] or model


def read_run(path: Path, name: str, tool: str = MILL) -> RunInfo:
    """A run that cannot be read has the reason instead of its content."""
    run = RunInfo(uid_of(name), name, path, run_signature(path), tool)
    try:
        run = replace(run, manifest=run.folder.manifest())
        return replace(run, results=run.folder.results())
    except (MillError, OSError) as error:
        return replace(run, error=str(error))


def run_signature(path: Path) -> Signature:
    return tuple(file_signature(path / name) for name in (MANIFEST, RESULTS))


def file_signature(file: Path) -> tuple[int, int, int] | None:
    """What changes when the file does; None where there is none."""
    try:
        found = file.lstat()
    except (OSError, ValueError):
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino


def uid_of(name: str) -> str:
    return hashlib.blake2b(name.encode("utf-8", "backslashreplace"), digest_size=5).hexdigest()
