"""manifest.json and results.json: small files that several processes change at once, also over a network, without locks.

Each process publishes its entries in its own part (`parts/<process>.json`); the file is the merge of all parts. The newest
entry of a name wins: newest by its number, not by a clock; of equal numbers the one of more weight. After writing the file a
process checks whether a part changed meanwhile and merges again, so the last one to write has seen all parts.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from mill.api.errors import RunError
from mill.api.storage import unique_name, write_json
from mill.api.validate import convert
from mill.runs.folder import MANIFEST, RESULTS, RunFolder, read_json
from mill.runs.schema import Part, decode_floats, refuse_misnamed

T = TypeVar("T")

PARTS = "parts"
TOP = ""  # the section of a file's top-level fields
_MAPPINGS = ("tasks", "benchmarks")
_LISTS = ("sessions",)  # of entries with an `id`, sorted by their `order`
_ATTEMPTS = 50
_MOST_PARTS = 100_000  # in the cache; a run has one for each process that ever worked on it


@dataclass(frozen=True)
class Entry:
    """A value that a process published under a name. `weight` decides between entries of the same number."""

    value: Any
    weight: int = 0
    number: int = 0
    writer: str = ""

    @property
    def rank(self) -> tuple[int, int, str]:
        return self.number, self.weight, self.writer


_publishing = threading.Lock()

Entries = dict[str, dict[str, Entry]]
"""Section -> name -> the entry that wins."""


def publish(folder: RunFolder, file: str, sections: Mapping[str, Mapping[str, Entry]]) -> None:
    """Add entries to one of a run's files. Threads of a process have one part, which one of them at a time changes."""
    with _publishing:
        _publish(folder, file, sections)


def _publish(folder: RunFolder, file: str, sections: Mapping[str, Mapping[str, Entry]]) -> None:
    part_file, known = folder.path / PARTS / f"{writer_name()}.json", merged(folder, file)
    part = read_json(part_file)
    own = part.setdefault(file, {})
    for section, entries in sections.items():
        own.setdefault(section, {})
        for name, entry in entries.items():
            earlier = known.get(section, {}).get(name)
            number = 1 + (earlier.number if earlier else 0)
            own[section][name] = {"number": number, "weight": entry.weight, "value": entry.value}
    write_json(part_file, part, root=folder.root)
    _write_merged(folder, file)


def merged(folder: RunFolder, file: str) -> Entries:
    """The entries that win now. What the file has and no part has is the oldest entry of its name."""
    winning: Entries = {
        section: {name: Entry(value) for name, value in values.items()}
        for section, values in _sections(folder.read(file)).items()
    }
    for part, *signature in _signature(folder):
        for section, entries in _read_part(part, *signature).get(file, {}).items():
            known = winning.setdefault(section, {})
            for name, published in entries.items():
                entry = Entry(published.value, published.weight, published.number, part.stem)
                if name not in known or entry.rank >= known[name].rank:
                    known[name] = entry
    return winning


def read_entries(folder: RunFolder, file: str, section: str, kind: type[T]) -> dict[str, T]:
    """The values of a section that win now, each checked against its type."""
    values = {}
    for name, entry in merged(folder, file).get(section, {}).items():
        source = folder.path / PARTS / f"{entry.writer}.json" if entry.writer else folder.path / file
        values[name] = convert(decode_floats(entry.value), kind, f"{section}.{name} in {source}", RunError)
    refuse_misnamed(values, f"{section} of {folder.path / file}")
    return values


@lru_cache(maxsize=_MOST_PARTS)
def _read_part(part: Path, inode: int, changed_ns: int, size: int) -> dict[str, Part]:
    """The entries of a part for each file. A part is read once: its writer replaces it as a whole."""
    content = read_json(part)
    return {
        file: convert(content[file], Part, f"{file} in {part}", RunError) for file in (MANIFEST, RESULTS) if file in content
    }


@lru_cache(maxsize=1)
def _name_of(pid: int) -> str:
    return unique_name()


def writer_name() -> str:
    """This process's name; a forked child has another."""
    return _name_of(os.getpid())


def _write_merged(folder: RunFolder, file: str) -> None:
    for _ in range(_ATTEMPTS):
        before = _signature(folder)
        winning = merged(folder, file)
        content = {name: one.value for name, one in winning.pop(TOP, {}).items() if name not in (*_LISTS, *_MAPPINGS)}
        for section, entries in winning.items():
            values = {name: entry.value for name, entry in entries.items()}
            content[section] = sorted(values.values(), key=_order) if section in _LISTS else values
        folder.write(file, content)
        if _signature(folder) == before:
            return


def _signature(folder: RunFolder) -> list[tuple[Path, int, int, int]]:
    """All parts by name, with the file attributes that change when one is replaced."""
    parts = []
    try:
        with os.scandir(folder.path / PARTS) as files:
            for file in files:
                if file.name.endswith(".json") and not file.name.startswith("."):
                    with contextlib.suppress(FileNotFoundError):  # removed by hand
                        stat = file.stat()
                        parts.append((folder.path / PARTS / file.name, stat.st_ino, stat.st_mtime_ns, stat.st_size))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"cannot read {folder.path / PARTS}: {error.strerror or error}") from error
    return sorted(parts)


def _sections(content: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A file's content as sections of named values."""
    sections: dict[str, dict[str, Any]] = {}
    for name, value in content.items():
        if name in _LISTS:
            sections[name] = {str(entry.get("id", index)): entry for index, entry in enumerate(value)}
        elif name in _MAPPINGS:
            sections[name] = dict(value)
        else:
            sections.setdefault(TOP, {})[name] = value
    return sections


def _order(entry: Any) -> tuple[int, str]:
    """Entries that mill did not write come first; reading them reports what is wrong."""
    if not isinstance(entry, Mapping):
        return 0, ""
    order = entry.get("order", 0)
    return order if isinstance(order, int) else 0, str(entry.get("id", ""))
