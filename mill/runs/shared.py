"""manifest.json and results.json: small files that several processes change at once, also over a network, without a lock.

Each process writes what it has to say into a part of its own (`parts/<process>.json`), and the file is what all parts add
up to. Of every entry the newest word counts: newest by number, not by clock, and of two that were said at once the one of
more weight. Whoever has written the file looks again whether a part has come meanwhile, so the last to write saw them all.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mill.api.storage import unique_name, write_atomically
from mill.runs.folder import RunFolder, read_json

PARTS = "parts"
TOP = ""  # the section of what stands at the top of a file itself
_MAPPINGS = ("tasks", "benchmarks")
_LISTS = ("sessions",)  # of entries with an `id`, in the order of their `order`
_ATTEMPTS = 50


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
    place, known = folder.path / PARTS / f"{writer_name()}.json", standing(folder, file)
    part = read_json(place)
    sections = part.setdefault(file, {})
    for section, entries in said.items():
        sections.setdefault(section, {})
        for name, word in entries.items():
            earlier = known.get(section, {}).get(name)
            number = 1 + (earlier.number if earlier else 0)
            sections[section][name] = {"number": number, "weight": word.weight, "value": word.value}
    write_atomically(place, json.dumps(part, ensure_ascii=False) + "\n")
    _write_view(folder, file)


def standing(folder: RunFolder, file: str) -> Words:
    """The words that count now. What the file has and no part says counts too, as the oldest word of all."""
    found: Words = {
        section: {name: Word(value) for name, value in entries.items()}
        for section, entries in _sections(folder.read(file)).items()
    }
    for place in sorted((folder.path / PARTS).glob("*.json")):
        for section, entries in read_json(place).get(file, {}).items():
            known = found.setdefault(section, {})
            for name, entry in entries.items():
                word = Word(entry["value"], entry["weight"], entry["number"], place.stem)
                if name not in known or word.rank >= known[name].rank:
                    known[name] = word
    return found


@lru_cache(maxsize=1)
def _name_of(pid: int) -> str:
    return unique_name()


def writer_name() -> str:
    """This process's name; a forked child has another."""
    return _name_of(os.getpid())


def _write_view(folder: RunFolder, file: str) -> None:
    for _ in range(_ATTEMPTS):
        before = _signature(folder)
        words = standing(folder, file)
        view = {name: word.value for name, word in words.pop(TOP, {}).items()}
        for section, entries in words.items():
            values = {name: word.value for name, word in entries.items()}
            view[section] = sorted(values.values(), key=_order) if section in _LISTS else values
        folder.write(file, view)
        if _signature(folder) == before:
            return


def _signature(folder: RunFolder) -> list[tuple[str, int, int]]:
    found = []
    for place in sorted((folder.path / PARTS).glob("*.json")):
        with contextlib.suppress(FileNotFoundError):  # removed by hand
            stat = place.stat()
            found.append((place.name, stat.st_ino, stat.st_mtime_ns))
    return found


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


def _order(entry: Mapping[str, Any]) -> tuple[int, str]:
    return int(entry.get("order", 0)), str(entry.get("id", ""))
