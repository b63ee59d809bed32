"""Finds runs, checks and logs of other tools below a folder. Links are not followed, and nothing large is read.

lm-eval      `results_DATE.json` or `NAME_DATE.json`, with `samples_TASK_DATE.jsonl` in the same folder
inspect_ai   `*.eval` (a zip file) or `*.json`
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
    """What is below a folder; `skipped` are folders that could not be read."""

    runs: list[Path] = field(default_factory=list)
    checks: list[Path] = field(default_factory=list)
    logs: list[OtherLog] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def scan(root: Path) -> Found:
    """`root` may also be one run, the folder of one check, or one log file."""
    found = Found()
    if root.is_file():
        if root.name == CHECK:
            found.checks.append(root)
        elif (log := identify_log(root)) is not None:
            found.logs.append(log)
        return found
    for folder, files in _folders(root, found):
        if MANIFEST in files:
            found.runs.append(folder)
        if CHECK in files:
            found.checks.append(folder / CHECK)
        found.logs += logs_in(folder, files - {MANIFEST, CHECK})
    return found


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
        files = {one.name for one in listed if not one.name.startswith(".") and one.is_file(follow_symlinks=False)}
        yield folder, files
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
_LM_EVAL_NAME = re.compile(rf".+_({_DATE})\.json")
_SAMPLES_NAME = re.compile(rf"samples_(.+)_({_DATE})\.jsonl")
_LM_EVAL_HEAD = re.compile(rb'\s*\{\s*"results"\s*:\s*\{')
_INSPECT_HEAD = re.compile(rb'\s*\{\s*"version"\s*:\s*\d+\s*,\s*"status"\s*:\s*"\w+"\s*,\s*"eval"\s*:\s*\{')
_FIRST_MEMBER = re.compile(rb"(?:_journal/|samples/|header\.json|summaries\.json|reductions\.json)")


@dataclass(frozen=True)
class OtherLog:
    """One evaluation by another tool. It is converted again when one of `files` changes; `path` is the first of them."""

    tool: str
    path: Path
    files: tuple[Path, ...]

    def convert(self, target: Path) -> None:
        """Write manifest.json, results.json and the samples to the folder `target`, in mill's own format.

        Scores are the tool's own. A file that cannot be read is a RunError; a sample that cannot be read is counted and
        reported with its task.
        """
        from mill.view.other_logs.inspect_log import convert_inspect  # they import much, and most folders have no such logs
        from mill.view.other_logs.lm_eval import convert_lm_eval

        try:
            (convert_lm_eval if self.tool == LM_EVAL else convert_inspect)(self, RunFolder(target))
        except FileNotFoundError as error:
            raise RunError(f"cannot read {error.filename or self.path}: there is no such file") from error


def logs_in(folder: Path, names: Collection[str]) -> list[OtherLog]:
    """The logs among the files of one folder, by name. Links are not followed, and no samples are read."""
    found = []
    samples: dict[str, list[Path]] | None = None
    for name in sorted(names):
        file = folder / name
        tool = _tool(file)
        if tool == LM_EVAL:
            samples = _samples_by_date(folder, names) if samples is None else samples
            date = _LM_EVAL_NAME.fullmatch(name)
            found.append(OtherLog(LM_EVAL, file, (file, *samples.get(date[1] if date else "", []))))
        elif tool is not None:
            found.append(OtherLog(tool, file, (file,)))
    return found


def identify_log(file: Path) -> OtherLog | None:
    """The log that a file is; None for any other file, such as a link or one that cannot be read."""
    beside = [other.name for other in file.parent.iterdir()] if _tool(file) is not None else []
    return next((log for log in logs_in(file.parent, beside) if log.path == file), None)


def task_of(samples_file: Path) -> str:
    """The task in the name of a samples file of lm-eval."""
    found = _SAMPLES_NAME.fullmatch(samples_file.name)
    return found[1] if found else samples_file.stem


def _tool(file: Path) -> str | None:
    if file.suffix not in (".eval", ".json") or file.is_symlink():
        return None
    try:
        with open_regular(file) as handle:
            head = handle.read(_HEAD)
    except (OSError, RunError):  # it is gone, a pipe, or may not be read
        return None
    if file.suffix == ".eval":
        # The name of the first member of a zip file is behind 30 bytes, of which the last four are its length and another.
        first = head[30:] if head.startswith(b"PK\x03\x04") else b""
        return INSPECT if _FIRST_MEMBER.match(first) else None
    if _INSPECT_HEAD.match(head):
        return INSPECT
    return LM_EVAL if _LM_EVAL_NAME.fullmatch(file.name) and _LM_EVAL_HEAD.match(head) else None


def _samples_by_date(folder: Path, names: Collection[str]) -> dict[str, list[Path]]:
    by_date: dict[str, list[Path]] = {}
    for name in sorted(names):
        found = _SAMPLES_NAME.fullmatch(name)
        if found and not (file := folder / name).is_symlink():
            by_date.setdefault(found[2], []).append(file)
    return by_date
