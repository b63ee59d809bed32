"""Where each answer of a record stands: which line of which file. The answers themselves stay on disk until asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from mill.api.errors import RunError

# A line as `Record` writes it, up to its answer. Whatever looks otherwise is parsed as a whole.
_HEAD = re.compile(
    rb'\{"key": "([0-9a-f#]+)", "kind": "\w+", "deterministic": (true|false), "failed": (true|false), "response": \{'
)
_OPEN_FILES = 32


class Place(int):
    """A line of a record: the number of its file, where it begins, and what it tells of its answer."""

    __slots__ = ()

    @property
    def failed(self) -> bool:
        return bool(self & 1)

    @property
    def deterministic(self) -> bool:
        return bool(self & 2)


class Index:
    """Reads the files of a folder once, and on `refresh` what has come since. Where a key was answered several times, an
    answer stands before an error, and the one in the first file, by name, before the others: every reader sees the same."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}  # of files, in `_names`
        self._ends: dict[str, int] = {}
        self._places: dict[str, Place] = {}
        self._handles: dict[str, IO[bytes]] = {}
        self.refresh()

    def __len__(self) -> int:
        return len(self._places)

    def refresh(self) -> None:
        """Read what other processes have written since the last look."""
        for file in sorted(self.folder.glob("*.jsonl")):
            for offset, line in self._new_lines(file):
                key, deterministic, failed = self._head(file, line)
                self.add(key, file.name, offset, deterministic=deterministic, failed=failed)

    def add(self, key: str, name: str, offset: int, *, deterministic: bool, failed: bool) -> None:
        """Also of a line that this process has written itself, so that `refresh` does not read it again."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._names)
            self._names.append(name)
        place = Place(number << 50 | offset << 2 | deterministic << 1 | failed)
        earlier = self._places.get(key)
        if earlier is None or self._stands_before(place, earlier):
            self._places[key] = place

    def skip(self, name: str, end: int) -> None:
        """A file is known up to here."""
        self._ends[name] = end

    def find(self, key: str) -> Place | None:
        """Where the answer to a key stands, if there is one."""
        return self._places.get(key)

    def answer(self, place: Place) -> dict[str, Any]:
        """The recorded answer, as it was written."""
        name, offset = self._names[place >> 50], place >> 2 & (1 << 48) - 1
        try:
            handle = self._handle(name)
            handle.seek(offset)
            found: dict[str, Any] = json.loads(handle.readline())["response"]
            return found
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise damaged(self.folder / name, f"at byte {offset}", error) from error

    def close(self) -> None:
        for handle in self._handles.values():
            handle.close()
        self._handles.clear()

    def _stands_before(self, place: Place, earlier: Place) -> bool:
        if place.failed != earlier.failed:
            return earlier.failed
        return (self._names[place >> 50], place) < (self._names[earlier >> 50], earlier)

    def _handle(self, name: str) -> IO[bytes]:
        handle = self._handles.get(name)
        if handle is None:
            if len(self._handles) >= _OPEN_FILES:
                self.close()
            handle = self._handles[name] = (self.folder / name).open("rb")
        return handle

    def _new_lines(self, file: Path) -> Iterator[tuple[int, bytes]]:
        """Whole lines with their offsets. The last may be torn, or be on its way: it is left for the next look."""
        place = self._ends.get(file.name, 0)
        try:
            with file.open("rb") as handle:
                handle.seek(place)
                for line in handle:
                    if not line.endswith(b"\n"):
                        break
                    yield place, line
                    place += len(line)
                    self._ends[file.name] = place
        except OSError as error:
            raise RunError(f"cannot read {file}: {error}") from error

    def _head(self, file: Path, line: bytes) -> tuple[str, bool, bool]:
        """(key, deterministic, failed)"""
        head = _HEAD.match(line)
        if head and line.endswith(b"}}\n"):
            return head[1].decode(), head[2] == b"true", head[3] == b"true"
        try:
            whole = json.loads(line)
            return str(whole["key"]), bool(whole.get("deterministic")), "error" in whole["response"]
        except (ValueError, KeyError, TypeError) as error:
            raise damaged(file, f"at byte {self._ends.get(file.name, 0)}", error) from error


def damaged(file: Path, where: str, error: Exception) -> RunError:
    return RunError(f"{file} is damaged {where} ({error}): move the file away to compute its answers again")
