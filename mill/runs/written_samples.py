"""Samples files that a repeated command need not write again: it scores, as a rule, what they were written from."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mill import __version__
from mill.api.errors import MillError
from mill.api.storage import json_text, write_atomically
from mill.api.validate import read_file
from mill.runs.folder import SAMPLES, RunFolder
from mill.runs.sample_rows import run_columns
from mill.runs.samples import ScoredSample, write_samples

FILE = ".written.json"
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True)
class WrittenFile:
    """What a file was written from, as a digest, and how to tell that it is still that file."""

    digest: str
    size: int
    modified_ns: int
    changed_ns: int
    inode: int


class SamplesWriter:
    """Writes the samples of a run's tasks, each file only if its content changes. `save` stores what the files have."""

    def __init__(self, folder: RunFolder, model: str) -> None:
        self.folder, self.model = folder, model
        self._file = folder.path / SAMPLES / FILE
        self._known = _read(self._file)
        self._found = dict(self._known)

    def write(self, task: str, scored: Sequence[ScoredSample]) -> None:
        file = self.folder.samples_file(task)
        digest = self._digest(task, scored)
        known = self._found.get(file.name)
        if known is not None and known == _written(file, digest):
            return
        write_samples(self.folder, self.model, task, scored)
        written = _written(file, digest) if digest else None
        if written is not None:
            self._found[file.name] = written
        else:
            self._found.pop(file.name, None)

    def save(self) -> None:
        if self._found != self._known:
            content = {name: vars(written) for name, written in self._found.items()}
            write_atomically(self._file, json_text(content), root=self.folder.root, sync=False)

    def _digest(self, task: str, scored: Sequence[ScoredSample]) -> str:
        """Of everything that the rows are made from; empty where a value has no digest, such as one of a foreign type."""
        digest = hashlib.blake2b(digest_size=16)
        try:
            digest.update(_encode([__version__, task, run_columns(self.model, self.folder)]))
            for one in scored:
                digest.update(_encode(one))
        except (TypeError, ValueError, OverflowError, RecursionError, NotImplementedError):
            return ""
        return digest.hexdigest()


def _written(file: Path, digest: str) -> WrittenFile | None:
    try:
        stat = file.lstat()
    except OSError:
        return None
    return WrittenFile(digest, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)


def _read(file: Path) -> dict[str, WrittenFile]:
    """Empty if the file is missing or not valid, which costs time alone."""
    try:
        return read_file(file, dict[str, WrittenFile])
    except (MillError, FileNotFoundError):
        return {}
