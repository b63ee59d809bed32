"""The two formats of inspect_ai's logs: `.eval`, a zip file with a member for each sample, and `.json`.

Both give the header, and the samples one at a time, the epochs of a sample together.
"""

from __future__ import annotations

import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from mill.api.errors import RunError
from mill.api.storage import open_regular
from mill.api.validate import convert, parse_json
from mill.view.other_logs.inspect_schema import InspectHeader
from mill.view.other_logs.json_stream import JsonStream
from mill.view.other_logs.zip_members import ZipMembers

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
