"""The two formats of inspect_ai's logs: `.eval`, a zip file with a member for each sample, and `.json`.

Both give the header, and the samples one at a time, the epochs of a sample together.

Reads members of a zip file that may be hostile: sizes are checked before a byte is decompressed, and nothing is written.

inspect_ai compresses its logs with Zstandard, which Python's zipfile reads from 3.14 on; pyarrow has a decoder.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import struct
import tempfile
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from mill.api.errors import RunError
from mill.support.files import MOST_LINE, open_regular
from mill.support.validate import convert, parse_json
from mill.view.other_logs.inspect_schema import InspectHeader

_HEADER = struct.Struct("<4s22xHH")  # of a member: signature, then the lengths of its name and of its extra field
_ZSTANDARD = 93
_MOST_RATIO = 1000  # of all members' size to the file's, where they exceed 1 GiB
_MOST_TOTAL = 1 << 30


class ZipMembers:
    """The members of a zip file by name. Where a name is used twice the last counts, as in inspect_ai."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._handle: IO[bytes] = open_regular(file)
        try:
            self._members = self._listed()
        except BaseException:
            self._handle.close()
            raise

    def __enter__(self) -> ZipMembers:
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.close()

    @property
    def names(self) -> list[str]:
        return list(self._members)

    def _listed(self) -> dict[str, zipfile.ZipInfo]:
        try:
            with zipfile.ZipFile(self._handle) as archive:
                members = {info.filename: info for info in archive.infolist()}
        except (
            zipfile.BadZipFile,
            NotImplementedError,
            ArithmeticError,
            ValueError,
            EOFError,
            OSError,
            struct.error,
        ) as error:
            raise RunError(f"{self.file} is not a valid zip file: {error}") from error
        size = os.fstat(self._handle.fileno()).st_size
        if sum(info.compress_size for info in members.values()) > size:
            raise RunError(f"{self.file} is not valid: its members overlap")
        total = sum(info.file_size for info in members.values())
        if total > max(_MOST_TOTAL, _MOST_RATIO * size):
            raise RunError(f"{self.file} is not valid: {size:,} bytes would become {total:,}")
        return members

    def read(self, name: str) -> bytes:
        """A member; refused where it is larger than MOST_LINE, damaged, or not as large as the file says."""
        info, where = self._members[name], f"{self.file}, member {name},"
        if max(info.file_size, info.compress_size) > MOST_LINE:
            raise RunError(f"{where} is larger than {MOST_LINE >> 20} MiB")
        if info.flag_bits & 1:
            raise RunError(f"{where} is encrypted")
        try:
            data = _decompressed(self._raw(info), info)
        except (ArithmeticError, ValueError, OSError, struct.error, zlib.error) as error:
            raise RunError(f"{where} cannot be decompressed: {error}") from error
        if len(data) != info.file_size or zlib.crc32(data) != info.CRC:
            raise RunError(f"{where} is damaged: its size or checksum is wrong")
        return data

    def _raw(self, info: zipfile.ZipInfo) -> bytes:
        self._handle.seek(info.header_offset)
        signature, name, extra = _HEADER.unpack(self._handle.read(_HEADER.size))
        if signature != b"PK\x03\x04":
            raise ValueError("it does not begin with a header")
        self._handle.seek(name + extra, os.SEEK_CUR)
        return self._handle.read(info.compress_size)


def _decompressed(raw: bytes, info: zipfile.ZipInfo) -> bytes:
    """At most one byte more than the file says."""
    if info.compress_type == zipfile.ZIP_STORED:
        return raw
    if info.compress_type == zipfile.ZIP_DEFLATED:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(raw, info.file_size + 1)
    if info.compress_type == _ZSTANDARD:
        import pyarrow

        with pyarrow.CompressedInputStream(pyarrow.BufferReader(raw), "zstd") as stream:
            return bytes(stream.read(info.file_size + 1))
    raise ValueError(f"compression {info.compress_type} is not supported")


_CHUNK = 1 << 20
_BLANKS = " \t\r\n"


class JsonStream:
    """A JSON object in a file of any size. One member, or one element of a list, is in memory at a time; it may be as
    large as MOST_LINE."""

    def __init__(self, handle: IO[bytes], file: Path) -> None:
        self._handle, self._file = handle, file
        self._text, self._position, self._ended = "", 0, False
        self._utf8 = codecs.getincrementaldecoder("utf-8")()
        self._json = json.JSONDecoder()

    def members(self) -> Iterator[str]:
        """The names of the object's members. The caller reads each value, by `value` or `elements`, before the next."""
        self._expect("{")
        if self._skip("}"):
            return
        while True:
            name, _ = self.value()
            if not isinstance(name, str):
                raise self._invalid("a name is needed")
            self._expect(":")
            yield name
            if not self._skip(","):
                self._expect("}")
                return

    def elements(self) -> Iterator[tuple[Any, str]]:
        """The elements of a list, each as a value and as its text; nothing of a value that is no list."""
        if self._next() != "[":
            self.value()
            return
        self._expect("[")
        if self._skip("]"):
            return
        while True:
            yield self.value()
            if not self._skip(","):
                self._expect("]")
                return

    def value(self) -> tuple[Any, str]:
        """The next value and its text. It is parsed again with twice the text where it does not end yet."""
        self._next()
        while True:
            try:
                found, end = self._json.raw_decode(self._text, self._position)
                if end < len(self._text) or self._ended:  # a number may continue
                    text = self._text[self._position : end]
                    self._position = end
                    return found, text
            except RecursionError as error:
                raise self._invalid("it is nested too deeply") from error
            except ValueError as error:
                if self._ended or len(self._text) - self._position > MOST_LINE:
                    raise self._invalid(str(error)) from error
            self._more()

    def _next(self) -> str:
        """The next character that is not blank; empty at the end."""
        while True:
            while self._position < len(self._text) and self._text[self._position] in _BLANKS:
                self._position += 1
            if self._position < len(self._text):
                return self._text[self._position]
            if self._ended:
                return ""
            self._more()

    def _skip(self, character: str) -> bool:
        found = self._next() == character
        self._position += found
        return found

    def _expect(self, character: str) -> None:
        if not self._skip(character):
            raise self._invalid(f"{character!r} is needed, not {self._next()!r}")

    def _more(self) -> None:
        rest = self._text[self._position :]
        try:
            raw = self._handle.read(max(_CHUNK, len(rest)))
            self._ended = not raw
            self._text, self._position = rest + self._utf8.decode(raw, final=self._ended), 0
        except OSError as error:
            raise RunError(f"cannot read {self._file}: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise self._invalid("it is not UTF-8") from error

    def _invalid(self, why: str) -> RunError:
        return RunError(f"{self._file} is not valid JSON: {' '.join(why.split())[:200]}")


_SAMPLE = re.compile(r"samples/(.*)_epoch_(\d{1,9})\.json", re.DOTALL)
_NOT_HEADER = ("samples", "reductions")


class InspectFile(ABC):
    """An open log. `header` is read on opening."""

    header: InspectHeader

    def __enter__(self) -> InspectFile:
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...

    @property
    @abstractmethod
    def sample_names(self) -> list[str]:
        """The ids of its samples, as texts."""

    @abstractmethod
    def read(self, name: str) -> Iterator[tuple[Any, str]]:
        """Each epoch of a sample as JSON, and where it is in the file; a RunError where it cannot be read."""


def open_inspect_log(file: Path) -> InspectFile:
    return EvalFile(file) if file.suffix == ".eval" else JsonLogFile(file)


class EvalFile(InspectFile):
    """A `.eval` file. One that was not finished has its start in `_journal`."""

    def __init__(self, file: Path) -> None:
        self._members = ZipMembers(file)
        try:
            names = self._members.names
            name = "header.json" if "header.json" in names else "_journal/start.json"
            if name not in names:
                raise RunError(f"{file} is not a log of inspect_ai: it has no header.json")
            self.header = _header(parse_json(self._members.read(name), f"{file}, {name},", RunError), f"{file}, {name},")
        except BaseException:
            self._members.__exit__()
            raise
        self._epochs: dict[str, list[tuple[int, str]]] = {}
        for name in names:
            if found := _SAMPLE.fullmatch(name):
                self._epochs.setdefault(found[1], []).append((int(found[2]), name))

    def __exit__(self, *_: object) -> None:
        self._members.__exit__()

    @property
    def sample_names(self) -> list[str]:
        return list(self._epochs)

    def read(self, name: str) -> Iterator[tuple[Any, str]]:
        for _, member in sorted(self._epochs[name]):
            where = f"{self._members.file}, {member},"
            yield parse_json(self._members.read(member), where, RunError), where


class JsonLogFile(InspectFile):
    """A `.json` file, which has its samples sorted by epoch. They are copied to a temporary file, where each is found by
    its offset."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._copy: IO[bytes] = tempfile.TemporaryFile()
        self._copied = 0
        self._epochs: dict[str, dict[int, tuple[int, int]]] = {}
        try:
            with open_regular(file) as handle:
                self.header = _header(self._read_members(JsonStream(handle, file)), file)
        except BaseException:
            self._copy.close()
            raise

    def __exit__(self, *_: object) -> None:
        self._copy.close()

    def _read_members(self, stream: JsonStream) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for name in stream.members():
            if name == "samples":
                for index, (sample, text) in enumerate(stream.elements()):
                    self._add(sample, text, index)
            else:
                value, _ = stream.value()
                members |= {name: value} if name not in _NOT_HEADER else {}
        return members

    def _add(self, sample: Any, text: str, index: int) -> None:
        found = sample if isinstance(sample, dict) else {}
        epoch = found.get("epoch")
        raw = text.encode("utf-8", "surrogatepass")
        epochs = self._epochs.setdefault(str(found.get("id", f"samples[{index}]")), {})
        epochs[epoch if isinstance(epoch, int) else 1] = (self._copied, len(raw))
        self._copied += self._copy.write(raw)

    @property
    def sample_names(self) -> list[str]:
        return list(self._epochs)

    def read(self, name: str) -> Iterator[tuple[Any, str]]:
        for epoch, (offset, length) in sorted(self._epochs[name].items()):
            self._copy.seek(offset)
            where = f"{self._file}, sample {name} of epoch {epoch},"
            yield parse_json(self._copy.read(length), where, RunError), where


def in_order(names: Sequence[str], ids: Sequence[str | int]) -> list[str]:
    """Names in the order of the dataset; those that it does not have are last."""
    positions = {str(one): position for position, one in enumerate(ids)}
    return sorted(names, key=lambda name: positions.get(name, len(positions)))


def _header(data: Any, where: object) -> InspectHeader:
    header: InspectHeader = convert(data, InspectHeader, where, RunError)
    if header.version < 2:
        raise RunError(f"{where} has version {header.version} of inspect_ai's logs; `inspect log convert` makes a newer one")
    return header
