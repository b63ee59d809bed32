"""The append-only record of a run's answers, and the cache that runs of one model share.

Every process writes lines to a file of its own, so writers cannot disturb each other, and a process killed in the middle
of a line loses that line alone. A line is an answer under its request's key; reading is the union of all files.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from mill.api.errors import RunError
from mill.api.request import Request
from mill.api.response import Response

FOLDER = "record"
DISTRIBUTIONS = "distributions"


class Record:
    """The answers of one run. Also finds deterministic answers that other runs of the same model recorded."""

    def __init__(self, folder: Path, siblings: list[Path] | None = None, *, lends: bool = True) -> None:
        """`lends` says whether runs of the same model may take answers from this record."""
        self.folder, self.lends = folder / FOLDER, lends
        self._own = {key: Response.from_dict(line["response"]) for key, line in _read(self.folder).items()}
        self._shared: dict[str, Response] = {}
        for sibling in siblings or []:
            for key, line in _read(sibling / FOLDER).items():
                response = Response.from_dict(line["response"])
                if line.get("deterministic") and not response.failed and not response.empty:
                    self._shared.setdefault(key, response)
        self._handle: IO[str] | None = None

    def get(self, request: Request) -> Response | None:
        """What `peek` finds; an answer of another run is copied, so that this record is complete by itself."""
        found = self.peek(request)
        if found is not None and found is not self._own.get(request.key):
            self.put(request, found)
        return found

    def peek(self, request: Request) -> Response | None:
        """An answer this run recorded, or a deterministic one of another run. Errors are never used again."""
        found = self._own.get(request.key)
        if found is None or found.failed:
            found = self._shared.get(request.key) if request.deterministic else None
        return found if found is not None and self._whole(found) else None

    def _whole(self, response: Response) -> bool:
        """False where a distribution's file was removed, as people who need room do."""
        return response.distribution is None or (self.folder.parent.parent / response.distribution).exists()

    def put(self, request: Request, response: Response) -> Response:
        """Write an answer down. A distribution goes to a file of its own first, whose name then stands in the answer."""
        if response.distribution is not None and not isinstance(response.distribution, str):
            response = replace(response, distribution=self._put_distribution(request.key, response.distribution))
        line = {
            "key": request.key,
            "kind": request.kind,
            "deterministic": request.deterministic and self.lends,
            "response": response.to_dict(),
        }
        try:
            handle = self._open()
            handle.write(json.dumps(line, ensure_ascii=False) + "\n")
            handle.flush()  # in the kernel's hands now: it survives the end of this process
        except OSError as error:
            raise RunError(f"cannot write to {self.folder}: {error.strerror or error}") from error
        self._own[request.key] = response
        return response

    def _put_distribution(self, key: str, values: Any) -> str:
        """The file's name, below the folder of this model's runs, so that runs which lend each other answers find it."""
        import numpy as np

        file = self.folder.parent / DISTRIBUTIONS / f"{key}.npy"
        draft = file.with_name(f".{file.name}.{os.getpid()}")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with draft.open("wb") as handle:
                np.save(handle, np.asarray(values, dtype=np.float32), allow_pickle=False)
            draft.replace(file)
        except OSError as error:
            raise RunError(f"cannot write {file}: {error.strerror or error}") from error
        return f"{self.folder.parent.name}/{DISTRIBUTIONS}/{key}.npy"

    def lookup(self, key: str) -> Response | None:
        """Whatever was recorded under a key, errors included."""
        return self._own.get(key)

    def close(self) -> None:
        if self._handle is not None:
            os.fsync(self._handle.fileno())
            self._handle.close()
            self._handle = None

    def _open(self) -> IO[str]:
        if self._handle is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            name = f"{time.strftime('%Y%m%dT%H%M%S')}-{socket.gethostname()}-{os.getpid()}.jsonl"
            self._handle = (self.folder / name).open("a", encoding="utf-8", errors="surrogatepass")
        return self._handle


def _read(folder: Path) -> dict[str, dict[str, Any]]:
    """All lines by key; where a key was answered twice, an answer wins over an error and the earlier one over the later."""
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(folder.glob("*.jsonl")):
        for line in _lines(file):
            earlier = found.get(line["key"])
            if earlier is None or "error" in earlier["response"]:
                found[line["key"]] = line
    return found


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a file. Only the last may be torn; a bad line elsewhere means a damaged file and is told."""
    try:
        lines = file.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise RunError(f"cannot read {file}: {error}") from error
    for number, line in enumerate(lines, 1):
        try:
            yield json.loads(line)
        except ValueError as error:
            hint = "move the file away to compute its answers again"
            raise RunError(f"{file}, line {number} is damaged ({error}): {hint}") from error
