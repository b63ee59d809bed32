"""What the processes of a run have spent: one small file for each, which survives the process, also one that is killed.

A process overwrites its own file in place, with a checksum: a reader never takes half of a write for a count. No process
writes to the file of another, so there are no locks. The file of a process that was killed has what it had spent, what it
had in flight, and how long it had worked on the run, up to a second.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from mill.api.budget import TokenUsage
from mill.api.errors import RunError
from mill.api.storage import json_text, make_folder, read_bytes, unique_name
from mill.api.validate import convert, parse_json
from mill.execute.budget import MODEL, Amounts, OtherSpending, Spending, summed
from mill.runs.advisory_lock import LivenessWatcher, own_process
from mill.runs.folder import MANIFEST, RunFolder
from mill.runs.schema import LedgerEntry, SessionEntry
from mill.runs.shared import read_entries

FOLDER, SUFFIX = "spending", ".ledger"
BEAT_S = 0.5
SILENCE_S = 30.0  # without a beat, before a process that may be alive counts as killed
_BYTES = 2048
_MOST_BYTES = 16 << 20
_REMEDY = "move it away, and what that process has spent is not counted"
_ATTEMPTS = 20  # to read a file between two writes

Interval = tuple[float, float]


class LedgerFile:
    """This process's file, and those of the others."""

    def __init__(self, folder: RunFolder) -> None:
        self.name = unique_name()
        self._run, self._folder = folder, folder.path / FOLDER
        self._process = own_process()
        self._started, self._began = time.time(), time.monotonic()
        self._own, self._beat, self._ended = Spending(), 0, False
        self._reader = _LedgerReader(folder.path, self.name)
        self._before = [one for one in earlier_sessions(folder) if not self._reader.has(one.name)]
        self._writing, self._stopped = threading.Lock(), threading.Event()
        self._cached: tuple[float, OtherSpending, list[Interval]] | None = None
        self.other_entries: Callable[[], Mapping[str, LedgerEntry]] = dict
        """The entries of processes whose files may not be seen here, such as ranks on other machines."""
        try:
            make_folder(self._folder, root=folder.root)
            path = self._folder / f"{self.name}{SUFFIX}"
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except OSError as error:
            raise RunError(f"cannot write to {self._folder}: {error.strerror or error}") from error
        self._write()
        self._thread = threading.Thread(target=self._send_beats, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The last write of this process. Where the disk is full, the amounts of the last beat stay."""
        self._stopped.set()
        self._thread.join()
        self._ended = True
        with contextlib.suppress(RunError):
            self._write()
        os.close(self._descriptor)

    def write(self, own: Spending, *, at_once: bool) -> None:
        self._own = own
        if at_once:
            self._write()

    def entry(self) -> LedgerEntry:
        """This process's entry as it is now."""
        own = self._own
        return LedgerEntry(
            **self._process,
            beat=self._beat,
            started=self._started,
            seconds=time.monotonic() - self._began,
            ended=self._ended,
            spent=dict(own.spent),
            in_flight=dict(own.in_flight),
            planned=dict(own.planned),
        )

    def read_all(self) -> dict[str, LedgerEntry]:
        """The entries of all processes whose files are seen here."""
        return {**self._reader.entries(), self.name: self.entry()}

    def others(self, *, fresh: bool) -> OtherSpending:
        return self._read(fresh=fresh)[1]

    def seconds(self) -> float:
        own = (self._started, self._started + time.monotonic() - self._began)
        return _covered([*self._read(fresh=False)[2], own])

    def _read(self, *, fresh: bool) -> tuple[float, OtherSpending, list[Interval]]:
        now, cached = time.monotonic(), self._cached
        if cached is not None and not fresh and now - cached[0] < BEAT_S:
            return cached
        entries = {**self.other_entries(), **self._reader.entries()}
        others = {name: entry for name, entry in entries.items() if name != self.name}
        alive = {name for name, entry in others.items() if not entry.ended and not self._reader.is_dead(name, entry)}
        spent: list[Amounts] = [one.spent for one in self._before if one.name not in entries]
        pending: list[Amounts] = []
        for name, entry in others.items():
            spent.append(entry.spent)
            if name in alive:
                pending += [entry.in_flight, entry.planned]
            else:
                spent.append(entry.in_flight)
        worked = [(entry.started, entry.started + entry.seconds) for entry in others.values()]
        worked += [one.worked for one in self._before if one.name not in entries]
        cached = (now, OtherSpending(summed(spent), summed(pending)), worked)
        self._cached = cached
        return cached

    def _write(self) -> None:
        with self._writing:
            self._beat += 1
            text = json_text(entry_dict(self.entry()))
            content = f"{zlib.crc32(text.encode()):08x} {text}\n".encode()
            try:
                os.lseek(self._descriptor, 0, os.SEEK_SET)
                os.write(self._descriptor, content.ljust(_BYTES))
            except OSError as error:
                raise RunError(f"cannot write to {self._folder}: {error.strerror or error}") from error

    def _send_beats(self) -> None:
        while not self._stopped.wait(BEAT_S):
            with contextlib.suppress(RunError):  # a full disk: the work itself reports it
                self._write()


def entry_dict(entry: LedgerEntry) -> dict[str, Any]:
    """As `asdict` gives it, which takes ten times as long: an entry is written for every request."""
    amounts = {
        name: {account: usage.to_dict() for account, usage in getattr(entry, name).items()}
        for name in ("spent", "in_flight", "planned")
    }
    return {**entry.__dict__, **amounts}


def spent_so_far(folder: RunFolder) -> tuple[Amounts, float]:
    """The tokens of a run by account, and the wall time in which processes worked on it."""
    entries = _LedgerReader(folder.path, "").entries()
    before = [one for one in earlier_sessions(folder) if one.name not in entries]
    spent = [amounts for entry in entries.values() for amounts in (entry.spent, entry.in_flight)]
    worked = [(entry.started, entry.started + entry.seconds) for entry in entries.values()]
    return summed([*spent, *(one.spent for one in before)]), _covered([*worked, *(one.worked for one in before)])


@dataclass(frozen=True)
class EarlierSession:
    """A session of the manifest: all that is known of a process without a file of its own, as of earlier versions."""

    name: str
    spent: Amounts
    worked: Interval


def earlier_sessions(folder: RunFolder) -> list[EarlierSession]:
    sessions = read_entries(folder, MANIFEST, "sessions", SessionEntry)
    return [
        EarlierSession(
            name,
            {MODEL: TokenUsage(one.prompt_tokens, one.output_tokens, reasoning=one.reasoning_tokens)},
            _interval(one),
        )
        for name, one in sessions.items()
    ]


def _interval(session: SessionEntry) -> Interval:
    try:
        started = datetime.fromisoformat(session.started).timestamp()
    except ValueError:
        started = 0.0
    return started, started + session.seconds


class _LedgerReader:
    """The files of other processes. One that did not change is not read again."""

    def __init__(self, run: Path, own: str) -> None:
        self._folder, self._own = run / FOLDER, own
        self._known: dict[str, tuple[tuple[int, int], LedgerEntry]] = {}
        self._watcher = LivenessWatcher(run)
        self._beats: dict[str, tuple[int, float]] = {}

    def has(self, name: str) -> bool:
        return (self._folder / f"{name}{SUFFIX}").exists()

    def entries(self) -> dict[str, LedgerEntry]:
        found = {}
        for file, signature in self._files():
            name = file.name.removesuffix(SUFFIX)
            known = self._known.get(name)
            if known is None or known[0] != signature or not known[1].ended:
                with contextlib.suppress(FileNotFoundError):  # removed by hand
                    known = self._known[name] = (signature, _read_entry(file))
            if known is not None:
                found[name] = known[1]
        return found

    def _files(self) -> Iterator[tuple[Path, tuple[int, int]]]:
        try:
            with os.scandir(self._folder) as files:
                for file in files:
                    if file.name.endswith(SUFFIX) and file.name != f"{self._own}{SUFFIX}":
                        with contextlib.suppress(FileNotFoundError):
                            stat = file.stat()
                            yield self._folder / file.name, (stat.st_ino, stat.st_mtime_ns)
        except FileNotFoundError:
            return
        except OSError as error:
            raise RunError(f"cannot read {self._folder}: {error.strerror or error}") from error

    def is_dead(self, name: str, entry: LedgerEntry) -> bool:
        """Whether a process has ended without saying so, or is suspended: what it has in flight is then taken as spent."""
        beat, seen = self._beats.get(name, (-1, 0.0))
        if beat != entry.beat:
            self._beats[name] = (entry.beat, seen := time.monotonic())
        return self._watcher.is_dead(name, entry) or time.monotonic() - seen > SILENCE_S


def _read_entry(file: Path) -> LedgerEntry:
    for _ in range(_ATTEMPTS):
        try:
            text = read_bytes(file, most=_MOST_BYTES).decode("utf-8", "replace").strip()
        except RunError as error:
            raise RunError(f"{error}: {_REMEDY}") from error
        checksum, _, content = text.partition(" ")
        if checksum == f"{zlib.crc32(content.encode()):08x}":
            try:
                return convert(parse_json(content, file, RunError), LedgerEntry, file, RunError)
            except RunError as error:
                raise RunError(f"{error}: {_REMEDY}") from error
        time.sleep(0.001)
    raise RunError(f"{file} is damaged: {_REMEDY}")


def _covered(intervals: Iterable[Interval]) -> float:
    """The length of the union of intervals: what several processes do at the same time counts once."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total
