"""Finds runs, checks and logs of other tools below a folder. Links are not followed, and nothing large is read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mill.checks.result import FILE as CHECK
from mill.store.folder import MANIFEST
from mill.view.other_logs.find import OtherLog, identify_log, logs_in

EXPORT_MARKER = ".mill-export"  # in a folder with copies of runs, which `mill export` wrote
MOST_DEPTH = 8
MOST_FOLDERS = 50_000


@dataclass
class Found:
    """What is below a folder; `skipped` are folders that could not be read."""

    runs: list[Path] = field(default_factory=list)
    checks: list[Path] = field(default_factory=list)
    logs: list[OtherLog] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def scan(root: Path) -> Found:
    """`root` may also be one run, the folder of one check, or one log file."""
    found = Found()
    if root.is_file():
        _file(root, found)
        return found
    for folder, files in _folders(root, found):
        if MANIFEST in files:
            found.runs.append(folder)
        if CHECK in files:
            found.checks.append(folder / CHECK)
        found.logs += logs_in(folder, files - {MANIFEST, CHECK})
    return found


def _file(file: Path, found: Found) -> None:
    if file.name == CHECK:
        found.checks.append(file)
    elif (log := identify_log(file)) is not None:
        found.logs.append(log)


def _folders(root: Path, found: Found) -> Iterator[tuple[Path, set[str]]]:
    """Folders with the names of their files, nearest first. Below a run there is nothing else to find, and what is exported
    below `root` are runs that it has already."""
    waiting, seen = [(root, 0)], 0
    while waiting:
        folder, depth = waiting.pop(0)
        seen += 1
        try:
            with os.scandir(folder) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            found.skipped.append(f"{folder}: {error.strerror}")
            continue
        if depth and any(entry.name == EXPORT_MARKER for entry in listed):
            continue
        files = {entry.name for entry in listed if _is_file(entry)}
        yield folder, files
        if MANIFEST in files or depth >= MOST_DEPTH:
            continue
        inner = [entry for entry in listed if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False)]
        if seen + len(waiting) + len(inner) > MOST_FOLDERS:
            found.skipped.append(f"{folder}: there are more than {MOST_FOLDERS:,} folders")
            continue
        waiting += [(folder / entry.name, depth + 1) for entry in inner]


def _is_file(entry: os.DirEntry[str]) -> bool:
    return not entry.name.startswith(".") and entry.is_file(follow_symlinks=False)
