"""manifest.json and results.json: small files that several processes change at once, also over a network, without a lock.

Each process writes what it has to say into a part of its own (`parts/<process>.json`), and the file is what all parts add
up to. Of every entry the newest word counts: newest by number, not by clock, and of two that were said at once the one of
more weight. Whoever has written the file looks again whether a part has come meanwhile, so the last to write saw them all.
"""

from __future__ import annotations

import contextlib
import os
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
TOP = ""  # the section of what stands at the top of a file itself
_MAPPINGS = ("tasks", "benchmarks")
_LISTS = ("sessions",)  # of entries with an `id`, in the order of their `order`
_ATTEMPTS = 50
_MOST_PARTS = 100_000  # that are remembered; a run has one for each process that ever worked on it


@dataclass(frozen=True)
class Word:
    """What somebody said of an entry. `weight` decides between words of the same number."""

    value: Any
    weight: int = 0
    number: int = 0
    writer: str = ""

    @property
    def rank(self) -> tuple[int, int, str]:
        return self.number, self.weight, self.writer


Words = dict[str, dict[str, Word]]
"""Section -> name of an entry -> what counts."""


def say(folder: RunFolder, file: str, said: Mapping[str, Mapping[str, Word]]) -> None:
    """Add words to one of a run's files."""
    place, known = folder.path / PARTS / f"{writer_name()}.json", merged(folder, file)
    part = read_json(place)
    sections = part.setdefault(file, {})
    for section, entries in said.items():
        sections.setdefault(section, {})
        for name, word in entries.items():
            earlier = known.get(section, {}).get(name)
            number = 1 + (earlier.number if earlier else 0)
            sections[section][name] = {"number": number, "weight": word.weight, "value": word.value}
    write_json(place, part, root=folder.root)
    _write_view(folder, file)


def merged(folder: RunFolder, file: str) -> Words:
    """The words that count now. What the file has and no part says counts too, as the oldest word of all."""
    found: Words = {
        section: {name: Word(value) for name, value in entries.items()}
        for section, entries in _sections(folder.read(file)).items()
    }
    for place, *signature in _signature(folder):
        for section, entries in _read_part(place, *signature).get(file, {}).items():
            known = found.setdefault(section, {})
            for name, entry in entries.items():
                word = Word(entry.value, entry.weight, entry.number, place.stem)
                if name not in known or word.rank >= known[name].rank:
                    known[name] = word
    return found


def entries(folder: RunFolder, file: str, section: str, kind: type[T]) -> dict[str, T]:
    """The entries of a section that count now, each checked against its type."""
    found = {}
    for name, word in merged(folder, file).get(section, {}).items():
        source = folder.path / PARTS / f"{word.writer}.json" if word.writer else folder.path / file
        found[name] = convert(decode_floats(word.value), kind, f"{section}.{name} in {source}", RunError)
    refuse_misnamed(found, f"{section} of {folder.path / file}")
    return found


@lru_cache(maxsize=_MOST_PARTS)
def _read_part(place: Path, inode: int, changed_ns: int, size: int) -> dict[str, Part]:
    """What a part says of each file. A part is read once: it is replaced as a whole when its writer says more."""
    found = read_json(place)
    return {
        file: convert(found[file], Part, f"{file} in {place}", RunError) for file in (MANIFEST, RESULTS) if file in found
    }


@lru_cache(maxsize=1)
def _name_of(pid: int) -> str:
    return unique_name()


def writer_name() -> str:
    """This process's name; a forked child has another."""
    return _name_of(os.getpid())


def _write_view(folder: RunFolder, file: str) -> None:
    for _ in range(_ATTEMPTS):
        before = _signature(folder)
        words = merged(folder, file)
        view = {name: word.value for name, word in words.pop(TOP, {}).items() if name not in (*_LISTS, *_MAPPINGS)}
        for section, entries in words.items():
            values = {name: word.value for name, word in entries.items()}
            view[section] = sorted(values.values(), key=_order) if section in _LISTS else values
        folder.write(file, view)
        if _signature(folder) == before:
            return


def _signature(folder: RunFolder) -> list[tuple[Path, int, int, int]]:
    """The parts there are, by name, and what changes when one is written again."""
    found = []
    try:
        with os.scandir(folder.path / PARTS) as files:
            for file in files:
                if file.name.endswith(".json") and not file.name.startswith("."):
                    with contextlib.suppress(FileNotFoundError):  # removed by hand
                        stat = file.stat()
                        found.append((folder.path / PARTS / file.name, stat.st_ino, stat.st_mtime_ns, stat.st_size))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"cannot read {folder.path / PARTS}: {error.strerror or error}") from error
    return sorted(found)


def _sections(view: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What a file holds, as sections of entries."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in view.items():
        if name in _LISTS:
            found[name] = {str(entry.get("id", place)): entry for place, entry in enumerate(value)}
        elif name in _MAPPINGS:
            found[name] = dict(value)
        else:
            found.setdefault(TOP, {})[name] = value
    return found


def _order(entry: Any) -> tuple[int, str]:
    """Entries that are not as mill writes them come first; whoever reads them says what is wrong."""
    if not isinstance(entry, Mapping):
        return 0, ""
    order = entry.get("order", 0)
    return order if isinstance(order, int) else 0, str(entry.get("id", ""))
