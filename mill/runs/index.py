"""Where each answer of a record stands: which line of which file. The answers themselves stay on disk until asked for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from mill.api.batching import ANSWER_FIELD
from mill.api.errors import MillError, RunError
from mill.api.storage import open_regular, read_lines
from mill.api.validate import convert, parse_json
from mill.api.warnings import warn
from mill.runs.schema import RecordLine, ResponseEntry, checked

# A line as `Record` writes it, up to the field of the answer that its kind asks for. Whatever looks otherwise is parsed as a
# whole.
_HEAD = re.compile(
    rb'\{"key": "([0-9a-f#]+)", "kind": "(\w+)", "deterministic": (true|false), "failed": (true|false), '
    rb'"response": \{"(\w+)": (?!null)'
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

    @property
    def names(self) -> list[str]:
        """The files that hold answers."""
        return self._names

    def refresh(self) -> None:
        """Read what other processes have written since the last look."""
        for file in sorted(self.folder.glob("*.jsonl")):
            empty = 0
            for offset, line in self._new_lines(file):
                head = self._head(file, line)
                if head is None:
                    empty += 1
                    continue
                key, deterministic, failed = head
                self.add(key, file.name, offset, deterministic=deterministic, failed=failed)
            if empty:
                warn(
                    f"{file}: {empty} lines hold no answer of their kind; they are ignored, and what they ask is asked again"
                )

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

    def answer(self, place: Place) -> Mapping[str, Any]:
        """The recorded answer, as it was written and as `Response.from_dict` takes it."""
        name, offset = self._names[place >> 50], place >> 2 & (1 << 48) - 1
        try:
            handle = self._handle(name)
            handle.seek(offset)
            line = parse_json(handle.readline(), "the line", RunError)
            return checked(line["response"] if isinstance(line, dict) else line, ResponseEntry, "the answer")
        except (OSError, KeyError, MillError) as error:
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
            handle = self._handles[name] = open_regular(self.folder / name)
        return handle

    def _new_lines(self, file: Path) -> Iterator[tuple[int, bytes]]:
        """Whole lines with their offsets. The last may be torn, or be on its way: it is left for the next look."""
        try:
            for place, line in read_lines(file, self._ends.get(file.name, 0)):
                if not line.endswith(b"\n"):
                    break
                yield place, line
                self._ends[file.name] = place + len(line)
        except FileNotFoundError as error:
            raise RunError(f"cannot read {file}: {error.strerror}") from error

    def _head(self, file: Path, line: bytes) -> tuple[str, bool, bool] | None:
        """(key, deterministic, failed); None of a line that holds no answer of its kind."""
        head = _HEAD.match(line)
        if head and line.endswith(b"}}\n"):
            needed = b"error" if head[4] == b"true" else _NEEDED.get(head[2])
            if head[5] == needed:
                return head[1].decode(), head[3] == b"true", head[4] == b"true"
        where = f"at byte {self._ends.get(file.name, 0)}"
        try:
            found = convert(parse_json(line, "the line", RunError), RecordLine, "the line", RunError)
        except RunError as error:
            raise damaged(file, where, error) from error
        failed, field = found.response.error is not None, ANSWER_FIELD.get(found.kind)
        if not failed and (field is None or getattr(found.response, field) is None):
            return None
        return found.key, found.deterministic, failed


_NEEDED = {kind.encode(): field.encode() for kind, field in ANSWER_FIELD.items()}


def damaged(file: Path, where: str, error: Exception) -> RunError:
    return RunError(f"{file} is damaged {where} ({error}): move the file away to compute its answers again")
