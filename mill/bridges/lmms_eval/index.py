"""Which tasks, groups and tags lmms-eval has, and the file of each, stored in the cache folder by version and path.

Names are read as lmms-eval reads them: the last file of a name counts, in the order in which the folders are walked, and a
`group` inside of a task's file is a tag.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mill.api.storage import cache_folder, write_json
from mill.bridges.lm_eval.index import GROUP, TAG, TASK, named_keys

CLASS = "python_task"  # lmms-eval's word for a task with a class of its own
FORMAT = 1  # of the stored file
_SKIPPED = ("__pycache__", ".ipynb_checkpoints")


@dataclass(frozen=True)
class LmmsEntry:
    """A name of lmms-eval. A tag has no file, and only a tag's tasks are known without loading it."""

    kind: str
    file: str = ""
    members: tuple[str, ...] = ()


@dataclass
class LmmsIndex:
    entries: dict[str, LmmsEntry] = field(default_factory=dict)

    def for_lmms_eval(self) -> dict[str, dict[str, Any]]:
        """The same in the form that lmms-eval's TaskManager makes by parsing all files."""
        return {
            name: {
                "type": entry.kind,
                "yaml_path": entry.file or -1,
                **({} if entry.kind in (TASK, CLASS) else {"task": list(entry.members) if entry.kind == TAG else -1}),
            }
            for name, entry in self.entries.items()
        }


def stored_index(root: Path, version: str) -> LmmsIndex:
    """The index of lmms-eval's own tasks, read from the cache where it is current, else made and stored."""
    stamp = f"{FORMAT}/{version}/{root}/{root.stat().st_mtime_ns}"
    file = cache_folder() / f"lmms-eval-{hashlib.blake2b(stamp.encode(), digest_size=8).hexdigest()}.json"
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        return LmmsIndex({name: LmmsEntry(kind, path, tuple(members)) for name, (kind, path, members) in stored.items()})
    except (OSError, ValueError, TypeError):
        index = make_index(root)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {name: [*asdict(entry).values()] for name, entry in index.entries.items()}, root=file.parent)
    except OSError:  # a cache that cannot be written only costs time
        pass
    return index


def make_index(root: Path) -> LmmsIndex:
    entries: dict[str, LmmsEntry] = {}
    tags: dict[str, list[str]] = {}
    for file in _yaml_files(root):
        config = named_keys(file)
        group, task = config.get("group"), config.get("task")
        if "class" in config and isinstance(task, str):
            entries[task] = LmmsEntry(CLASS, str(file))
        elif isinstance(task, list) and isinstance(group, str):
            entries[group] = LmmsEntry(GROUP, str(file), tuple(member for member in task if isinstance(member, str)))
        elif isinstance(task, str):
            entries[task] = LmmsEntry(TASK, str(file))
            for tag in (*_names(config.get("tag")), *_names(group)):
                tags.setdefault(tag, []).append(task)
    for tag, tasks in tags.items():
        entries.setdefault(tag, LmmsEntry(TAG, members=tuple(dict.fromkeys(tasks))))
    return LmmsIndex(entries)


def _yaml_files(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in _SKIPPED]
        yield from (Path(folder, name) for name in files if name.endswith(".yaml"))


def _names(given: Any) -> list[str]:
    return [given] if isinstance(given, str) else [str(name) for name in given or ()]
