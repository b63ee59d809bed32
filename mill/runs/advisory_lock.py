"""An advisory lock on the tasks of a run: a second command on the same tasks waits, and then finds all responses recorded.

A working process keeps a heartbeat file in the run's folder and rewrites it every few seconds. It uses no file locks and
compares no clocks, so it works over network file systems. The file of a killed process blocks no other: on the same machine
that is detected at once, elsewhere after a minute without a heartbeat. If two processes do start together, some responses
are computed twice; nothing else depends on the lock.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mill.api.errors import RunError
from mill.api.storage import unique_name, write_json
from mill.api.validate import read_file
from mill.api.warnings import warn
from mill.runs.folder import RunFolder
from mill.runs.schema import LedgerEntry, WorkingEntry

WORKING = "working"
BEAT_S = 5.0
SILENCE_S = 60.0
_POLL_S = 0.5


@contextmanager
def advisory_lock(folder: RunFolder, tasks: Sequence[str]) -> Iterator[None]:
    """Wait until no other process works on one of these tasks, then hold the lock while the block runs."""
    heartbeat = _Heartbeat(folder, tasks)
    waited = False
    try:
        heartbeat.start()
        others = _Others(heartbeat)
        while True:
            while other := others.ahead():
                if not waited:
                    warn(f"{other} works on the same tasks: waiting for it to end, so that nothing is computed twice")
                waited = True
                time.sleep(_POLL_S)
            heartbeat.write(working=True)
            if not others.any_working():
                break
            heartbeat.write(working=False)
        yield
    finally:
        heartbeat.stop()


class _Heartbeat:
    """This process's file, and a thread that rewrites it."""

    def __init__(self, folder: RunFolder, tasks: Sequence[str]) -> None:
        self.folder, self.root = folder.path / WORKING, folder.root
        self.name, self.tasks = unique_name(), list(tasks)
        self._beat, self._working, self._stopped, self._writing = 0, False, threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def file(self) -> Path:
        return self.folder / f"{self.name}.json"

    def start(self) -> None:
        self.write(working=False)
        self._thread.start()

    def write(self, *, working: bool | None = None) -> None:
        with self._writing:
            self._beat += 1
            self._working = self._working if working is None else working
            entry = own_process() | {"tasks": self.tasks, "working": self._working, "beat": self._beat}
            write_json(self.file, entry, root=self.root)

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()
        with contextlib.suppress(OSError):
            self.file.unlink(missing_ok=True)

    def _run(self) -> None:
        while not self._stopped.wait(BEAT_S):
            with contextlib.suppress(RunError):  # a full disk: the work itself reports it
                if self.folder.is_dir():  # a folder that was removed is not made again
                    self.write()


class LivenessWatcher:
    """Which processes work on a run: the last beat of each, and when it changed by this process's clock."""

    def __init__(self, run: Path) -> None:
        self.folder = run / WORKING
        self._beats: dict[str, tuple[int | None, float]] = {}

    def entries(self) -> Iterator[tuple[Path, WorkingEntry]]:
        """All heartbeat files, also those of processes that have ended."""
        for file in sorted(self.folder.glob("*.json")):
            with contextlib.suppress(RunError, FileNotFoundError):  # removed, or written by another version
                yield file, read_file(file, WorkingEntry, RunError)

    def alive(self) -> list[WorkingEntry]:
        """The processes at work, not those that wait for the lock."""
        return [entry for file, entry in self.entries() if entry.working and not self.is_dead(file.stem, entry)]

    def is_dead(self, name: str, entry: WorkingEntry | LedgerEntry) -> bool:
        if entry.machine == _machine():
            return _born(entry.pid) != entry.born
        beat, seen = self._beats.get(name, (None, 0.0))
        if beat != entry.beat:
            self._beats[name] = (entry.beat, time.monotonic())
            return False
        return time.monotonic() - seen > SILENCE_S


class _Others:
    """The heartbeats of other processes on the same tasks."""

    def __init__(self, own: _Heartbeat) -> None:
        self.own, self._watcher = own, LivenessWatcher(own.folder.parent)

    def ahead(self) -> str | None:
        """A process that works on one of these tasks or has waited longer for them; None when there is none."""
        for name, entry in self._alive():
            if entry.working or name < self.own.name:
                return f"process {entry.pid} on {entry.host}"
        return None

    def any_working(self) -> bool:
        """Whether another process took the lock at the same time: both release it, and the one that waited longer wins."""
        return any(entry.working for _, entry in self._alive())

    def _alive(self) -> Iterator[tuple[str, WorkingEntry]]:
        for file, entry in self._watcher.entries():
            if file.stem == self.own.name or not set(entry.tasks) & set(self.own.tasks):
                continue
            if self._watcher.is_dead(file.stem, entry):
                file.unlink(missing_ok=True)
            else:
                yield file.stem, entry


def own_process() -> dict[str, Any]:
    """What identifies this process to others, on this machine and elsewhere."""
    return {"host": socket.gethostname(), "machine": _machine(), "pid": os.getpid(), "born": _born(os.getpid())}


def _machine() -> str:
    """Equal for processes that see each other's process ids; a container has its own ids."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def _born(pid: int) -> str | None:
    """When a process started, which distinguishes it from a later one with the same id; None if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]  # a zombie has ended
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        return "running"
    return "running"
