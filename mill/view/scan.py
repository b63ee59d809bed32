"""Finds runs, checks and logs of other tools below a folder. Links are not followed, and nothing large is read.

lm-eval      `results_DATE.json` or `NAME_DATE.json`, with `samples_TASK_DATE.jsonl` in the same folder
inspect_ai   `*.eval`, or a `.json` that begins as its logs do
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mill.api.errors import RunError
from mill.checks.result import FILE as CHECK
from mill.store.folder import MANIFEST, RunFolder
from mill.support.files import open_regular

EXPORT_MARKER = ".mill-export"  # in a folder with copies of runs, which `mill export` wrote
MOST_DEPTH = 8
MOST_FOLDERS = 50_000


@dataclass
class Found:
    """What is below a folder; `skipped` is what was not read, and why."""

    runs: list[Path] = field(default_factory=list)
    checks: list[Path] = field(default_factory=list)
    logs: list[ToolLog] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def scan(root: Path) -> Found:
    """`root` may also be one run, the folder of one check, or one log file."""
    found = Found()
    if root.is_file():
        if root.name == CHECK:
            found.checks.append(root)
        else:
            beside = [file.name for file in root.parent.iterdir()]
            found.logs += [log for log in logs_in(root.parent, beside) if log.path == root]
        return found
    for folder, files in _folders(root, found):
        if MANIFEST in files:
            found.runs.append(folder)
        if CHECK in files:
            found.checks.append(folder / CHECK)
        found.logs += logs_in(folder, files)
    return found


def _folders(root: Path, found: Found) -> Iterator[tuple[Path, set[str]]]:
    """Folders with the names of their files, nearest first. Below a run there is nothing else to find. What was exported
    are copies of runs, which count where there is no run."""
    waiting, seen, runs = [(root, 0)], 0, False
    exported: list[tuple[Path, int]] | None = []  # looked at last; None once that has begun
    while waiting or (exported and not runs):
        if not waiting and exported:
            waiting, exported = exported, None
        folder, depth = waiting.pop(0)
        seen += 1
        try:
            with os.scandir(folder) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            found.skipped.append(f"{folder}: {error.strerror}")
            continue
        if depth and exported is not None and any(entry.name == EXPORT_MARKER for entry in listed):
            exported.append((folder, depth))
            continue
        files = {one.name for one in listed if not one.name.startswith(".") and one.is_file(follow_symlinks=False)}
        yield folder, files
        runs = runs or MANIFEST in files
        if MANIFEST in files or depth >= MOST_DEPTH:
            continue
        inner = [entry for entry in listed if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)]
        if seen + len(waiting) + len(inner) > MOST_FOLDERS:
            found.skipped.append(f"{folder}: there are more than {MOST_FOLDERS:,} folders")
            continue
        waiting += [(folder / entry.name, depth + 1) for entry in inner]


LM_EVAL, INSPECT = "lm-eval", "inspect_ai"
_HEAD = 4096  # bytes of a file that identify it
_DATE = r"\d{4}-\d{2}-\d{2}T\d{2}-\d{2}-\d{2}(?:\.\d+)?"
_RESULTS_NAME = re.compile(rf".+_({_DATE})\.json")
_SAMPLES_NAME = re.compile(rf"samples_(.+)_({_DATE})\.jsonl")
_RESULTS_START = re.compile(rb'\s*\{\s*"results"\s*:\s*\{')
_INSPECT_START = re.compile(rb'\s*\{\s*"version"\s*:\s*\d+\s*,\s*"status"\s*:\s*"\w+"\s*,\s*"eval"\s*:\s*\{')


@dataclass(frozen=True)
class ToolLog:
    """One evaluation of another tool; of lm-eval its results file, then its samples files. It is converted again when one of
    them changes."""

    tool: str
    files: tuple[Path, ...]

    @property
    def path(self) -> Path:
        return self.files[0]

    def convert(self, target: Path) -> None:
        """Write manifest.json, results.json and the samples to the folder `target`, in mill's own format. A file that cannot
        be read is a RunError; a sample that cannot be read is counted and reported with its task."""
        from mill.view.inspect_log import convert_inspect  # they import much, and most folders have no such logs
        from mill.view.lm_eval_log import convert_lm_eval

        try:
            (convert_inspect if self.tool == INSPECT else convert_lm_eval)(self, RunFolder(target))
        except FileNotFoundError as error:
            raise RunError(f"cannot read {error.filename or self.path}: there is no such file") from error


def logs_in(folder: Path, names: Collection[str]) -> list[ToolLog]:
    """The logs among the files of one folder. Links are not followed, and no samples are read."""
    dates = {name: match[1] for name in sorted(names) if (match := _RESULTS_NAME.fullmatch(name))}
    results = {name: date for name, date in dates.items() if _starts_with(_RESULTS_START, folder / name)}
    samples: dict[str, list[Path]] = {}
    for name in sorted(names) if results else ():
        match = _SAMPLES_NAME.fullmatch(name)
        if match and not (folder / name).is_symlink():
            samples.setdefault(match[2], []).append(folder / name)
    logs = [ToolLog(LM_EVAL, (folder / name, *samples.get(date, []))) for name, date in results.items()]
    others = sorted(set(names) - results.keys()) if MANIFEST not in names else []  # a run has many .json files, and no logs
    return logs + [ToolLog(INSPECT, (folder / name,)) for name in others if _is_inspect_log(folder / name)]


def _is_inspect_log(file: Path) -> bool:
    if file.suffix == ".eval":
        return not file.is_symlink()
    return file.suffix == ".json" and _starts_with(_INSPECT_START, file)


def _starts_with(start: re.Pattern[bytes], file: Path) -> bool:
    if file.is_symlink():
        return False
    try:
        with open_regular(file) as handle:
            return start.match(handle.read(_HEAD)) is not None
    except (OSError, RunError):  # it is gone, a pipe, or may not be read
        return False


def task_of(samples_file: Path) -> str:
    """The task in the name of a samples file of lm-eval."""
    found = _SAMPLES_NAME.fullmatch(samples_file.name)
    return found[1] if found else samples_file.stem
