"""Which tasks, groups and tags lm-evaluation-harness has, and the file of each.

lm-eval parses all of its YAML files at every start. This index is stored in the cache folder by version and path, so that a
name is found in milliseconds and only the folders that it needs are loaded. lmms-eval's files are read the same way.
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
from mill.tasks.load import is_pattern

TASK, GROUP, TAG = "task", "group", "tag"
FORMAT = 2  # of the stored file
_KEYS = ("task", "group", "tag", "include", "class")
SKIPPED = {"__pycache__", ".ipynb_checkpoints"}


@dataclass(frozen=True)
class IndexEntry:
    """A name of lm-eval or of lmms-eval: a task, a group with its members, or a tag with its tasks, which has no file."""

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

    def kind(name: str) -> str:
        of = f" of {len(entries[name].members)}" if entries[name].members else ""
        return f"{entries[name].kind}{of}{f', in {text}' if name in inside else ''}"

    return [(name, kind(name)) for name in sorted(filter(wanted, entries), key=order)]


def stored_index(package: str, root: Path, version: str, make: Callable[[Path], Entries]) -> Entries:
    """The names of a package's own tasks, read from the cache where it is current, else made and stored."""
    stamp = f"{FORMAT}/{version}/{root}/{root.stat().st_mtime_ns}"
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


def make_index(root: Path, problems: list[str] | None = None) -> Entries:
    """The names in a folder of lm-eval's tasks. Files that name nothing because they cannot be read are added to the
    problems, with the reason."""
    entries: Entries = {}
    tags: dict[str, list[str]] = {}
    files = (file for file in root.rglob("*.yaml") if not SKIPPED & set(file.parts) and file.is_file())
    for file in sorted(files, key=lambda file: file.as_posix()):
        config = named_keys(file, problems)
        group, task = config.get("group"), config.get("task")
        if "class" not in config and isinstance(group, str):
            members = task if isinstance(task, list) else []
            entries.setdefault(group, IndexEntry(GROUP, str(file), tuple(_member_names(members))))
        elif isinstance(task, str) and task not in entries:
            entries[task] = IndexEntry(TASK, str(file))
            for tag in as_list(config.get("tag")):
                tags.setdefault(tag, []).append(task)
    for tag, tasks in tags.items():
        entries.setdefault(tag, IndexEntry(TAG, members=tuple(sorted(tasks))))
    return entries


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


def named_keys(file: Path, problems: list[str] | None = None, within: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The keys of a task file that name things, with those that it includes. What does not parse has none, and is added to
    the problems."""
    problems = [] if problems is None else problems
    if file in within or not file.is_file():  # a pipe or a device is never read
        if within:
            problems.append(f"{within[-1]} includes {file}, which {'includes it' if file in within else 'is not a file'}")
        return {}
    try:
        config = _Loader(file.read_text(encoding="utf-8-sig", errors="replace")).get_single_data()
    except OSError as error:
        problems.append(f"{file}: {error.strerror}")
        return {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        problems.append(f"{file}{where}: {getattr(error, 'problem', None) or 'this is not YAML'}")
        return {}
    if not isinstance(config, dict):
        return {}
    found = {key: config[key] for key in _KEYS if key in config}
    merged: dict[str, Any] = {}
    for included in as_list(found.pop("include", None)):
        merged |= named_keys((file.parent / included).resolve(), problems, (*within, file))
    return merged | found


def as_list(value: Any) -> list[str]:
    """One name or several; anything else is none, and lm-eval refuses it when the task is loaded."""
    return [value] if isinstance(value, str) else list(map(str, value)) if isinstance(value, list) else []


class _Loader(yaml.CSafeLoader if hasattr(yaml, "CSafeLoader") else yaml.SafeLoader):  # type: ignore[misc]
    """Reads `!function` and other tags as plain values: no code is imported."""


def _untagged(loader: yaml.Loader, suffix: str, node: yaml.Node) -> Any:
    return loader.construct_scalar(node) if isinstance(node, yaml.ScalarNode) else None


_Loader.add_multi_constructor("!", _untagged)
