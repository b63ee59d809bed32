"""Two commands on the same tasks of a run take turns: the second waits, and then finds everything answered.

Whoever works keeps a file in the run's folder and changes it every few seconds. No lock is held and no clock compared, so
this works over network file systems, and the file of a killed process keeps nobody: on the same machine that is seen at
once, elsewhere after a minute of silence. Should two slip in together, they compute some answers twice; nothing else.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mill.api.errors import RunError
from mill.api.storage import unique_name, write_json
from mill.api.validate import read_file
from mill.api.warnings import warn
from mill.runs.folder import RunFolder
from mill.runs.schema import WorkingEntry

WORKING = "working"
BEAT_S = 5.0
SILENCE_S = 60.0
_POLL_S = 0.5


@contextmanager
def taking_turns(folder: RunFolder, tasks: Sequence[str]) -> Iterator[None]:
    """Wait until nobody else works on one of these tasks, then let others know while the block runs."""
    mine = _Mine(folder, tasks)
    waited = False
    try:
        mine.start()
        watch = _Watch(mine)
        while True:
            while other := watch.ahead():
                if not waited:
                    warn(f"{other} works on the same tasks: waiting for it to end, so that nothing is computed twice")
                waited = True
                time.sleep(_POLL_S)
            mine.write(working=True)
            if not watch.clashes():
                break
            mine.write(working=False)
        yield
    finally:
        mine.stop()


class _Mine:
    """This process's file, with a thread that keeps it fresh."""

    def __init__(self, folder: RunFolder, tasks: Sequence[str]) -> None:
        self.place, self.root = folder.path / WORKING, folder.root
        self.name, self.tasks = unique_name(), list(tasks)
        self._beat, self._working, self._over, self._writing = 0, False, threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._keep_fresh, daemon=True)

    @property
    def file(self) -> Path:
        return self.place / f"{self.name}.json"

    def start(self) -> None:
        self.write(working=False)
        self._thread.start()

    def write(self, *, working: bool | None = None) -> None:
        with self._writing:
            self._beat += 1
            self._working = self._working if working is None else working
            told = {"host": socket.gethostname(), "machine": _machine(), "pid": os.getpid(), "born": _born(os.getpid())}
            told |= {"tasks": self.tasks, "working": self._working, "beat": self._beat}
            write_json(self.file, told, root=self.root)

    def stop(self) -> None:
        self._over.set()
        if self._thread.ident is not None:
            self._thread.join()
        with contextlib.suppress(OSError):
            self.file.unlink(missing_ok=True)

    def _keep_fresh(self) -> None:
        while not self._over.wait(BEAT_S):
            with contextlib.suppress(RunError):  # a full disk: the work itself will tell
                if self.place.is_dir():  # a folder that was removed is not made again
                    self.write()


@dataclass
class _Watch:
    """What is known of the others: the last sign of each, and when it changed, by this process's clock."""

    mine: _Mine
    _signs: dict[str, tuple[int | None, float]] = field(default_factory=dict)

    def ahead(self) -> str | None:
        """Somebody at work on one of my tasks, or waiting longer than I do; None when it is my turn."""
        for name, told in self._alive():
            if told.working or name < self.mine.name:
                return f"process {told.pid} on {told.host}"
        return None

    def clashes(self) -> bool:
        """Whether somebody took a turn at the same time: then both step back, and the one who waits longer goes first."""
        return any(told.working for _, told in self._alive())

    def _alive(self) -> Iterator[tuple[str, WorkingEntry]]:
        for file in sorted(self.mine.place.glob("*.json")):
            if file.stem == self.mine.name:
                continue
            with contextlib.suppress(RunError, FileNotFoundError):  # taken away, or not written by this version
                told = read_file(file, WorkingEntry, RunError)
                if set(told.tasks) & set(self.mine.tasks):
                    if self._gone(file.stem, told):
                        file.unlink(missing_ok=True)
                    else:
                        yield file.stem, told

    def _gone(self, name: str, told: WorkingEntry) -> bool:
        if told.machine == _machine():
            return _born(told.pid) != told.born
        beat, seen = self._signs.get(name, (None, 0.0))
        if beat != told.beat:
            self._signs[name] = (told.beat, time.monotonic())
            return False
        return time.monotonic() - seen > SILENCE_S


def _machine() -> str:
    """Something that only processes which can see each other's numbers share; a container has numbers of its own."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def _born(pid: int) -> str | None:
    """When a process started, so that another one under the same number is not mistaken for it; None if there is none."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if told[0] in "ZX" else told[19]  # ended, though nobody has asked for its exit code yet
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
