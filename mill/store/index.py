"""The index of a record: which line of which file has the response to a key. The responses stay on disk until read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec

from mill.api.batching import ANSWER_FIELD
from mill.api.errors import MillError, RunError
from mill.api.response import Response
from mill.store.sample_schema import RecordLine, read_response
from mill.support.files import open_regular, read_lines
from mill.support.terminal import warn
from mill.support.validate import convert, parse_json

_OPEN_FILES = 32


class RecordOffset(NamedTuple):
    """A line of a record. Of two lines with one key, the lesser wins."""

    failed: bool
    name: str
    offset: int
    deterministic: bool


class Index:
    """Reads the files of a folder once, and on `refresh` what was appended since. Where a key has several lines, a
    response wins over an error, and the first file by name over the others: every reader gets the same response."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, str] = {}  # of the files that have responses; each name is one object
        self._ends: dict[str, int] = {}
        self._offsets: dict[str, RecordOffset] = {}
        self._handles: dict[str, IO[bytes]] = {}
        self.refresh()

    def __len__(self) -> int:
        return len(self._offsets)

    def refresh(self) -> None:
        """Read what other processes have appended since the last call."""
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
                warn(f"{file}: {empty} lines have no response of their kind; they are ignored and their requests sent again")

    def add(self, key: str, name: str, offset: int, *, deterministic: bool, failed: bool) -> None:
        """Add a line; also one that this process has written itself, so that `refresh` does not read it again."""
        added = RecordOffset(failed, self.names.setdefault(name, name), offset, deterministic)
        self._offsets[key] = min(added, self._offsets.get(key, added))

    def skip(self, name: str, end: int) -> None:
        """Mark a file as read up to `end`."""
        self._ends[name] = end

    def find(self, key: str) -> RecordOffset | None:
        """The line with the response to a key."""
        return self._offsets.get(key)

    def response(self, line: RecordOffset) -> Response:
        """The recorded response of a line."""
        try:
            handle = self._handle(line.name)
            handle.seek(line.offset)
            return read_response(_parse(handle.readline())["response"], "the response")
        except (OSError, KeyError, TypeError, MillError) as error:
            raise damaged(self.folder / line.name, f"at byte {line.offset}", error) from error

    def close(self) -> None:
        for handle in self._handles.values():
            handle.close()
        self._handles.clear()

    def _handle(self, name: str) -> IO[bytes]:
        handle = self._handles.get(name)
        if handle is None:
            if len(self._handles) >= _OPEN_FILES:
                self.close()
            handle = self._handles[name] = open_regular(self.folder / name)
        return handle

    def _new_lines(self, file: Path) -> Iterator[tuple[int, bytes]]:
        """Whole lines with their offsets. A last line without a newline is torn or being written: it is left for later."""
        try:
            for offset, line in read_lines(file, self._ends.get(file.name, 0)):
                if not line.endswith(b"\n"):
                    break
                yield offset, line
                self._ends[file.name] = offset + len(line)
        except FileNotFoundError as error:
            raise RunError(f"cannot read {file}: {error.strerror}") from error

    def _head(self, file: Path, line: bytes) -> tuple[str, bool, bool] | None:
        """(key, deterministic, failed); None of a line without a response of its kind."""
        parsed: _Head | RecordLine
        try:
            parsed = _decode_head(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            try:
                parsed = convert(parse_json(line, "the line", RunError), RecordLine, "the line", RunError)
            except RunError as error:
                raise damaged(file, f"at byte {self._ends.get(file.name, 0)}", error) from error
        failed, field = parsed.response.error is not None, ANSWER_FIELD.get(parsed.kind)
        if not failed and (field is None or getattr(parsed.response, field) is None):
            return None
        return parsed.key, parsed.deterministic, failed


class _Answers(msgspec.Struct):
    text: Any = None
    score: Any = None
    label: Any = None
    error: Any = None


class _Head(msgspec.Struct):
    """What the index needs of a line. One that has less, as those of the first version, is read in full."""

    key: str
    kind: str
    deterministic: bool
    response: _Answers


_decode_head = msgspec.json.Decoder(_Head).decode


def _parse(line: bytes) -> Any:
    """A line as JSON. What msgspec refuses, such as lone surrogates, Python may read."""
    try:
        return msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return parse_json(line, "the line", RunError)


def damaged(file: Path, where: str, error: Exception) -> RunError:
    return RunError(f"{file} is damaged {where} ({error}): move the file away to compute its responses again")
