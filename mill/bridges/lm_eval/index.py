"""Which tasks, groups and tags lm-eval and lmms-eval have, and the file of each.

Both packages parse all of their YAML files at every start, which takes seconds. What they find is stored in the cache folder
by version and path, so that a name is found in milliseconds and only the folders that it needs are loaded.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from mill.api.errors import MillError
from mill.support.files import cache_folder, write_json
from mill.tasks.sources import is_pattern

TASK, GROUP, TAG = "task", "group", "tag"
_FORMAT = 3  # of the stored file


@dataclass(frozen=True)
class IndexEntry:
    """A task, a group with its members, or a tag with its tasks, which has no file."""

    kind: str
    file: str = ""
    members: tuple[str, ...] = ()


Entries = dict[str, IndexEntry]


def listed(entries: Mapping[str, IndexEntry], text: str) -> list[tuple[str, str]]:
    """The names that contain a text or match a pattern, with their kinds, groups first. The name of a group or tag comes
    first, then its members."""
    inside = set(entries[text].members) if text in entries else set()

    def wanted(name: str) -> bool:
        return fnmatch.fnmatch(name, text) if is_pattern(text) else text.lower() in name.lower() or name in inside

    def order(name: str) -> tuple[bool, bool, bool, str]:
        return name != text, name not in inside, entries[name].kind != GROUP, name

    return [
        (name, _kind(entries[name], text if name in inside else "")) for name in sorted(filter(wanted, entries), key=order)
    ]


def _kind(entry: IndexEntry, group: str) -> str:
    kind = f"{entry.kind} of {len(entry.members)}" if entry.members else entry.kind
    return f"{kind}, in {group}" if group else kind


def stored_index(package: str, root: Path, version: str, make: Callable[[Path], Entries]) -> Entries:
    """The names of a package's own tasks, read from the cache where it is current, else made and stored."""
    stamp = f"{_FORMAT}/{version}/{root}/{root.stat().st_mtime_ns}"
    file = cache_folder() / f"{package}-{hashlib.blake2b(stamp.encode(), digest_size=8).hexdigest()}.json"
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        if entries := {name: IndexEntry(kind, path, tuple(members)) for name, (kind, path, members) in stored.items()}:
            return entries
    except (OSError, ValueError, TypeError, AttributeError):  # a damaged file is written again
        pass
    entries = make(root)
    with contextlib.suppress(OSError, MillError):  # a cache that cannot be written only costs time
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, {name: [*asdict(entry).values()] for name, entry in entries.items()}, root=file.parent)
    return entries


def make_index(root: Path) -> Entries:
    """The names that lm-eval finds in a folder of tasks."""
    from lm_eval.tasks import TaskManager

    found = TaskManager(include_path=[str(root)], include_defaults=False).task_index
    return {name: _entry(entry) for name, entry in found.items() if isinstance(name, str)}


def _entry(entry: Any) -> IndexEntry:
    if entry.kind.name == "TAG":
        return IndexEntry(TAG, members=tuple(sorted(entry.tags)))
    members = entry.cfg.get("task") if entry.kind.name == "GROUP" else None
    kind = TASK if members is None else GROUP
    return IndexEntry(kind, str(entry.yaml_path), tuple(_member_names(members if isinstance(members, list) else [])))


def _member_names(members: Sequence[Any]) -> Iterator[str]:
    """The names that a group's list refers to; groups inside of it may be defined in place."""
    for member in members:
        if isinstance(member, str):
            yield member
        elif isinstance(member, Mapping):
            inner = member.get("task")
            if isinstance(member.get("group"), str):
                yield member["group"]
            if isinstance(inner, str):
                yield inner
            elif isinstance(inner, list):
                yield from _member_names(inner)


def broken_files(root: Path) -> list[str]:
    """Files of a folder that lm-eval leaves out without a word, each with its line and the reason."""
    return list(dict.fromkeys(problem for file in sorted(root.rglob("*.yaml")) if (problem := _problem(file))))


def _problem(file: Path, within: tuple[Path, ...] = ()) -> str:
    if file in within or not file.is_file():  # a pipe or a device is never read
        return f"{within[-1]} includes {file}, which is not a file or includes it" if within else ""
    try:
        config = yaml.load(file.read_text(encoding="utf-8-sig", errors="replace"), _Loader)
    except OSError as error:
        return f"{file}: {error.strerror}"
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        return f"{file}{where}: {getattr(error, 'problem', None) or 'this is not YAML'}"
    included = config.get("include") if isinstance(config, dict) else None
    names = included if isinstance(included, list) else [included] if included else []
    return next(filter(None, (_problem((file.parent / str(name)).resolve(), (*within, file)) for name in names)), "")


class _Loader(yaml.SafeLoader):
    """Reads `!function` and other tags as plain values: no code is imported."""


_Loader.add_multi_constructor("!", lambda loader, suffix, node: None)
