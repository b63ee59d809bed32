"""The append-only record of a run's answers, and the cache that runs of one model share.

Every process writes lines to a file of its own, so writers cannot disturb each other, and a process killed in the middle
of a line loses that line alone. A line is an answer under its request's key; reading is the union of all files.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from mill.api.errors import RunError
from mill.api.request import Request
from mill.api.response import Response
from mill.api.storage import make_folder, unique_name, utf8, write_atomically
from mill.api.warnings import warn
from mill.runs.index import Index, Place
from mill.runs.scrubbing import without_secrets

FOLDER = "record"
DISTRIBUTIONS = "distributions"
LOOK_S = 1.0  # how often a writer looks whether its file is still there
_encode = json.JSONEncoder(ensure_ascii=False).encode


class Record:
    """The answers of one run. Also finds deterministic answers that other runs of the same model recorded."""

    def __init__(
        self, folder: Path, other_runs: list[Path] | None = None, *, shareable: bool = True, root: Path | None = None
    ) -> None:
        """`shareable` says whether runs of the same model may take answers from this record.

        `root` is the folder that a person named; nothing is written through links below it.
        """
        self.folder, self.shareable, self.root = folder / FOLDER, shareable, root or folder
        self._own = Index(self.folder)
        self._shared = [index for sibling in other_runs or [] if (index := _readable(sibling / FOLDER))]
        self._handle: IO[bytes] | None = None
        self._name, self._end, self._looked = "", 0, 0.0

    def get(self, request: Request) -> Response | None:
        """What `peek` finds; an answer of another run is copied, so that this record is complete by itself."""
        found = self.answer(request.key)
        if found is None:
            found = self._borrowed(request)
            if found is not None:
                found = self.put(request, self._with_own_distribution(request.key, found))
        return found

    def peek(self, request: Request) -> Response | None:
        """An answer this run recorded, or a deterministic one of another run. Errors are never used again."""
        return self.answer(request.key) or self._borrowed(request)

    def answer(self, key: str) -> Response | None:
        """What this run recorded under a key; None where that is an error."""
        place = self._own.find(key)
        if place is None or place.failed:
            return None
        return self._checked(Response.from_dict(self._own.answer(place)))

    def _borrowed(self, request: Request) -> Response | None:
        for index in self._shared if request.deterministic else ():
            place = index.find(request.key)
            if place is not None and place.deterministic and not place.failed:
                found = self._lent(index, place)
                if found is not None and not found.empty:
                    return found
        return None

    def _lent(self, index: Index, place: Place) -> Response | None:
        """None where the other run's answer cannot be read: this run can do without."""
        try:
            return self._checked(Response.from_dict(index.answer(place)))
        except RunError as error:
            warn(f"an answer of another run is not used: {error}")
            return None

    def _with_own_distribution(self, key: str, borrowed: Response) -> Response:
        """Linked or copied, so that removing the other run takes nothing from this one."""
        if borrowed.distribution is None:
            return borrowed
        theirs, mine = distribution_file(self.folder.parent, borrowed.distribution), self._distribution(key)
        draft = mine.with_name(f".{unique_name()}")
        try:
            make_folder(mine.parent, root=self.root)
            try:
                os.link(theirs, draft)
            except OSError:  # another disk, or a file system without links
                shutil.copyfile(theirs, draft)
            draft.replace(mine)  # and never through a link in its place
        except (OSError, shutil.Error) as error:
            with contextlib.suppress(OSError):
                draft.unlink()
            raise RunError(f"cannot write {mine}: {getattr(error, 'strerror', None) or error}") from error
        return replace(borrowed, distribution=self._distribution_name(key))

    def _distribution(self, key: str) -> Path:
        return self.folder.parent / DISTRIBUTIONS / f"{key}.npy"

    def _distribution_name(self, key: str) -> str:
        """Below the folder of this model's runs."""
        return f"{self.folder.parent.name}/{DISTRIBUTIONS}/{key}.npy"

    def _checked(self, response: Response) -> Response | None:
        """None where a distribution's file was removed, as people who need room do, and where the answer is an error."""
        if response.failed:
            return None
        if response.distribution is None or distribution_file(self.folder.parent, response.distribution).exists():
            return response
        return None

    def refresh(self) -> None:
        """Take in what other processes have recorded since."""
        self._own.refresh()

    def put(self, request: Request, response: Response) -> Response:
        """Write an answer down. A distribution goes to a file of its own first, whose name then stands in the answer."""
        if response.distribution is not None and not isinstance(response.distribution, str):
            response = replace(response, distribution=self._put_distribution(request.key, response.distribution))
        return self._append(request.key, request.kind, request.deterministic and self.shareable, without_secrets(response))

    def adopt(self, line: Mapping[str, Any]) -> None:
        """Write down an answer that another process sends, unless it is known."""
        key, response = line["key"], Response.from_dict(line["response"])
        known = self._own.find(key)
        if known is None or known.failed:
            self._append(key, line["kind"], line["deterministic"] and self.shareable, without_secrets(response))

    def _append(self, key: str, kind: str, deterministic: bool, response: Response) -> Response:
        line = (
            f'{{"key": "{key}", "kind": "{kind}", "deterministic": {_word(deterministic)}, '
            f'"failed": {_word(response.failed)}, "response": {_encode(response.to_dict())}}}\n'
        )
        try:
            encoded = line.encode()
        except UnicodeEncodeError:  # lone surrogates; two of them side by side are read back as the character they make
            encoded = utf8(line)
            response = Response.from_dict(json.loads(encoded)["response"])
        offset = self._write(encoded)
        self._own.add(key, self._name, offset, deterministic=deterministic, failed=response.failed)
        self._own.skip(self._name, self._end)
        return response

    def _write(self, line: bytes) -> int:
        """Append a line and say where it begins. It is in the kernel's hands then: it survives the end of this process."""
        try:
            handle, offset = self._open(), self._end
            written = handle.write(line)
            self._end += written
            if written < len(line):
                handle.write(line[written:])  # says why there was no room for all of it
                raise OSError(None, "only a part of an answer could be written")
            if (now := time.monotonic()) - self._looked > LOOK_S:
                self._looked = now
                self._refuse_removed()
        except OSError as error:
            self._handle = None  # whatever is written later begins a new file: a torn line must stay the last
            raise RunError(f"cannot write to {self.folder}: {error.strerror or error}") from error
        return offset

    def _put_distribution(self, key: str, values: Any) -> str:
        """The file's name, below the folder of this model's runs, so that runs which lend each other answers find it."""
        import numpy as np

        file, array = self._distribution(key), np.asarray(values, dtype=np.float32)
        write_atomically(file, lambda handle: np.save(handle, array, allow_pickle=False), root=self.root, sync=False)
        return self._distribution_name(key)

    def lookup(self, key: str) -> Response | None:
        """Whatever was recorded under a key, errors included."""
        place = self._own.find(key)
        return None if place is None else Response.from_dict(self._own.answer(place))

    def close(self) -> None:
        for index in (self._own, *self._shared):
            index.close()
        if self._handle is not None:
            handle, self._handle = self._handle, None
            try:
                os.fsync(handle.fileno())
                handle.close()
            except OSError as error:
                raise RunError(f"cannot write to {self.folder}: {error.strerror or error}") from error

    def refuse_removed(self) -> None:
        """Raise where a file with answers of this run is gone: whoever took it away has the answers, or nobody has."""
        for name in self._own.names:
            file = self.folder / name
            if not file.exists():
                raise self._removed(name)
            if name == self._name and file.stat().st_size < self._end:
                raise self._cut()

    def _refuse_removed(self) -> None:
        """The same while a file is being written, also when another has come in its place."""
        assert self._handle is not None
        mine = os.fstat(self._handle.fileno())
        try:
            there = (self.folder / self._name).stat()
        except FileNotFoundError:
            there = None
        if there is None or not os.path.samestat(mine, there):
            raise self._removed(self._name)
        if there.st_size < self._end:
            raise self._cut()

    def _cut(self) -> RunError:
        return RunError(f"{self.folder / self._name} was cut during the run: answers that it had are lost; run again")

    def _removed(self, name: str) -> RunError:
        return RunError(
            f"{self.folder / name} was removed or moved during the run: what was answered is not recorded there; "
            "put the folder back, or run the same command again"
        )

    def _open(self) -> IO[bytes]:
        if self._handle is None:
            make_folder(self.folder, root=self.root)
            self._name, self._end, self._looked = f"{unique_name()}.jsonl", 0, time.monotonic()
            descriptor = os.open(self.folder / self._name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
            self._handle = os.fdopen(descriptor, "wb", buffering=0)
        return self._handle


def _readable(folder: Path) -> Index | None:
    """The answers of another run; None where they cannot be read, which is that run's trouble and not this one's."""
    try:
        return Index(folder)
    except RunError as error:
        warn(f"no answers are taken from another run: {error}")
        return None


def distribution_file(run: Path, name: str) -> Path:
    """The file that an answer of a run names; refused where the name leads out of the folder of this model's runs."""
    root = run.parent
    try:
        file = root / name
        inside = file.resolve().is_relative_to(root.resolve())
    except (OSError, ValueError, TypeError, RuntimeError):  # too long, a loop of links, or no name at all
        inside = False
    if not inside:
        raise RunError(f"an answer in {run} names the file {name!r}, which is outside of {root}")
    return file


def _word(value: bool) -> str:
    return "true" if value else "false"
