"""The session files of a run, RUN/sessions/<name>.json: one for each process, or thread, that ever worked on it.

A session file says which process it is, on which tasks it works or waits to work, what it has spent, and the entries that it
adds to manifest.json and results.json, which are the merge of all session files. Its process rewrites it every few seconds,
and nobody else does, so there are no locks and no clocks are compared: it works over network file systems. It stays when the
process has ended, also when that was killed.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from datetime import datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from mill.api.budget import NO_TOKENS, TokenUsage
from mill.api.engine import Engine
from mill.api.errors import RunError
from mill.execute.meter import MODEL, Amounts
from mill.store.folder import MANIFEST, RunFolder
from mill.store.schema import Entry, SessionEntry, SessionState, decode_floats, earlier_decisions, refuse_misnamed
from mill.support.files import unique_name, write_json
from mill.support.terminal import warn
from mill.support.validate import convert, read_file

T = TypeVar("T")

SESSIONS = "sessions"
_FILE = re.compile(r"([A-Za-z0-9._=-]+-\d+-[0-9a-f]{8})(\.ended)?\.json")  # by `unique_name`, so no copy of a cloud drive
ENDED = ".ended.json"  # how the file of a session ends that could not write that it has ended
BEAT_S, BUDGET_BEAT_S = 5.0, 0.5  # between two writes; where a budget depends on them
SILENCE_S = 60.0  # of a process on another machine, before it counts as dead
READ_S = 1.0  # between two looks at what others have spent
TOP = ""  # the section of a file's top-level fields
_MAPPINGS = ("tasks", "benchmarks", "decisions", "engines")
_LISTS = ("sessions",)  # of entries with an `id`, sorted by their `order`
_POLL_S = 0.5
_ATTEMPTS = 50
_CACHED = 10_000  # files

States = Mapping[str, SessionState]
"""Session files by name."""


Entries = dict[str, dict[str, Entry]]
"""Section -> name -> the entry that wins."""


class SessionFile:
    """This session's file. As a context it is written every `beat_s` seconds, and one last time at the end."""

    def __init__(
        self,
        folder: RunFolder,
        tasks: Iterable[str] = (),
        *,
        beat_s: float = BEAT_S,
        elsewhere: Callable[[States], States] | None = None,
    ) -> None:
        """`elsewhere` is told of the sessions that are known here, and returns those whose files may not be seen here."""
        self.folder, self.name = folder, unique_name()
        self.file = folder.path / SESSIONS / f"{self.name}.json"
        self.spent: Amounts = {}
        pid = os.getpid()
        self._state = SessionState(socket.gethostname(), _machine(), pid, list(tasks), born=_born(pid))
        self._began, self._beat_s, self._elsewhere = time.monotonic(), beat_s, elsewhere
        self._writing, self._over = threading.RLock(), threading.Event()
        self._others: tuple[float, Amounts, list[Interval]] | None = None
        self._thread = threading.Thread(target=self._send_beats, daemon=True)

    def __enter__(self) -> SessionFile:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Where the disk is full, what the last beat said stays, and the name of the file says that the session has ended. A
        session that leaves nothing leaves no file."""
        self._over.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            if not self.spent and not self._state.published:
                self.file.unlink()
            elif not self._beat(ended=True, working=False):
                self.file.rename(self.file.with_name(self.name + ENDED))

    @property
    def state(self) -> SessionState:
        seconds = time.monotonic() - self._began if self._state.working else self._state.seconds
        return replace(self._state, seconds=seconds, spent=self.spent.copy())

    def states(self) -> dict[str, SessionState]:
        """Of all sessions, by name."""
        return dict(sorted({**read_sessions(self.folder, skip=self.name), self.name: self.state}.items()))

    # Turns: a second command on the same tasks waits, and then finds all responses recorded. If two do start together, some
    # responses are computed twice; nothing else depends on it.

    def take_turn(self) -> None:
        """Wait until no other session works on one of these tasks, then work: the time of the session starts."""
        watcher, waited = SessionWatcher(self.folder), False
        if not self._state.beat:
            self._write()
        while True:
            while other := next((one for name, one in self._rivals(watcher) if one.working or name < self.name), None):
                if not waited:
                    who = f"process {other.pid} on {other.host}"
                    warn(f"{who} works on the same tasks: waiting for it to end, so that nothing is computed twice")
                waited = True
                time.sleep(_POLL_S)
            self._began = time.monotonic()
            self._write(working=True, started=time.time())
            if not any(other.working for _, other in self._rivals(watcher)):
                return
            self._write(working=False)  # both took it at the same time: who waited longer wins

    def _rivals(self, watcher: SessionWatcher) -> Iterator[tuple[str, SessionState]]:
        """Other sessions on the same tasks. One that died without an end gets one, so that nobody waits for it again."""
        for name, state in read_sessions(self.folder, skip=self.name).items():
            if state.ended:
                continue
            if watcher.is_dead(name, state):
                _write_state(self.folder, name, replace(state, ended=True, working=False))
            elif set(state.tasks) & set(self._state.tasks):
                yield name, state

    # Entries of manifest.json and results.json.

    def publish(self, file: str, sections: Mapping[str, Mapping[str, Entry]]) -> None:
        """Add entries to one of the run's files. Whoever writes the file merges again where a session has published
        meanwhile, so the last one to write has seen all of them."""
        content = self.folder.read(file)
        with self._writing:
            known = _merged(content, file, self.states())
            own = {name: dict(entries) for name, entries in self._state.published.get(file, {}).items()}
            for section, entries in sections.items():
                own.setdefault(section, {})
                for name, entry in entries.items():
                    earlier = known.get(section, {}).get(name)
                    number = 1 + (earlier.number if earlier else 0)
                    own[section][name] = replace(entry, number=number)
            self._write(published={**self._state.published, file: own})
        written = None
        for _ in range(_ATTEMPTS):
            whole = _whole(_merged(content, file, self.states()))
            if whole == written:
                return
            self.folder.write(file, whole)
            written = whole

    # What the run has spent (mill.execute.meter.Spending).

    def refresh(self) -> None:
        self._others = None

    def spent_elsewhere(self) -> Amounts:
        return self._read_others()[1]

    def run_seconds(self) -> float:
        own = self.state
        return _covered([*self._read_others()[2], (own.started, own.started + own.seconds)])

    def _read_others(self) -> tuple[float, Amounts, list[Interval]]:
        now, known = time.monotonic(), self._others
        if known is None or now - known[0] > READ_S:
            states = {**self._before, **self.states()}
            states |= self._elsewhere(states) if self._elsewhere is not None else {}
            others = [state for name, state in states.items() if name != self.name]
            self._others = known = (now, _summed(others), [*map(_interval, others)])
        return known

    @cached_property
    def _before(self) -> dict[str, SessionState]:
        return _earlier_sessions(self.folder)

    def _write(self, **changes: Any) -> None:
        with self._writing:
            changed = replace(self.state, **changes, beat=self._state.beat + 1)
            _write_state(self.folder, self.name, changed)
            self._state = changed

    def _send_beats(self) -> None:
        while not self._over.wait(self._beat_s):
            self._beat()

    def _beat(self, **changes: Any) -> bool:
        """Whether it could be written. Where a disk is full, the work itself reports it."""
        with contextlib.suppress(RunError):
            if self.file.exists():  # a folder that was removed is not made again
                self._write(**changes)
                return True
        return False


class SessionWatcher:
    """Which sessions of a run are alive: those on this machine whose process is there, and those on others that were heard
    of during the last minute, by this process's clock."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._beats: dict[str, tuple[int, float]] = {}

    def at_work(self) -> list[SessionState]:
        """Those that work, and do not wait for others."""
        states = read_sessions(self._folder)
        return [state for name, state in states.items() if state.working and not self.is_dead(name, state)]

    def is_dead(self, name: str, state: SessionState) -> bool:
        """Whether a session that has not said so has ended."""
        if state.machine == _machine():
            return _born(state.pid) != state.born
        beat, seen = self._beats.get(name, (-1, 0.0))
        if beat != state.beat:
            self._beats[name] = (state.beat, time.monotonic())
            return False
        return time.monotonic() - seen > SILENCE_S


def read_sessions(folder: RunFolder, *, skip: str = "") -> dict[str, SessionState]:
    """All session files, by name. One that did not change is not read again."""
    states = {}
    try:
        with os.scandir(folder.path / SESSIONS) as files:
            for file in sorted(files, key=lambda one: one.name):
                named = _FILE.fullmatch(file.name)
                if named is not None and (name := named[1]) != skip and file.is_file():
                    with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                        stat = file.stat()
                        state = _read_state(Path(file.path), stat.st_ino, stat.st_mtime_ns, stat.st_size)
                        states[name] = replace(state, ended=True, working=False) if named[2] else state
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise RunError(f"cannot read {folder.path / SESSIONS}: {error.strerror or error}") from error
    return states


@lru_cache(maxsize=_CACHED)
def _read_state(file: Path, *changed: int) -> SessionState:
    """`changed` are the attributes of a file that are others when it was replaced."""
    return read_file(file, SessionState, RunError)


def _write_state(folder: RunFolder, name: str, state: SessionState) -> None:
    write_json(folder.path / SESSIONS / f"{name}.json", asdict(state), root=folder.root)


# manifest.json and results.json.


def merged(folder: RunFolder, file: str) -> Entries:
    """The entries that win now."""
    return _merged(folder.read(file), file, read_sessions(folder))


def _merged(content: Mapping[str, Any], file: str, states: States) -> Entries:
    """What the file has and no session has is the oldest entry of its name."""
    winning: Entries = {
        section: {name: Entry(value) for name, value in values.items()} for section, values in _sections(content).items()
    }
    for writer, state in states.items():
        for section, entries in state.published.get(file, {}).items():
            known = winning.setdefault(section, {})
            for name, published in entries.items():
                entry = replace(published, writer=writer)
                if name not in known or entry.rank >= known[name].rank:
                    known[name] = entry
    values = {section: {name: one.value for name, one in entries.items()} for section, entries in winning.items()}
    for name, value in earlier_decisions(values).items():
        winning.setdefault("decisions", {}).setdefault(name, Entry(value))
    return winning


def read_entries(folder: RunFolder, file: str, section: str, kind: type[T]) -> dict[str, T]:
    """The values of a section that win now, each checked against its type."""
    values = {}
    for name, entry in merged(folder, file).get(section, {}).items():
        if entry.value is None:
            continue
        source = folder.path / SESSIONS / f"{entry.writer}.json" if entry.writer else folder.path / file
        values[name] = convert(decode_floats(entry.value), kind, f"{section}.{name} in {source}", RunError)
    refuse_misnamed(values, f"{section} of {folder.path / file}")
    return values


def known_engines(folder: RunFolder) -> dict[str, Engine]:
    """What has answered in the sessions of a run, by id."""
    return read_entries(folder, MANIFEST, "engines", Engine)


def _whole(winning: Entries) -> dict[str, Any]:
    """A file's content."""
    content = {name: one.value for name, one in winning.pop(TOP, {}).items() if name not in (*_LISTS, *_MAPPINGS)}
    for section, entries in winning.items():
        values = {name: entry.value for name, entry in entries.items() if entry.value is not None}
        content[section] = sorted(values.values(), key=_order) if section in _LISTS else values
    return content


def _sections(content: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A file's content as sections of named values."""
    sections: dict[str, dict[str, Any]] = {}
    for name, value in content.items():
        if name in _LISTS:
            sections[name] = {str(entry.get("id", index)): entry for index, entry in enumerate(value)}
        elif name in _MAPPINGS:
            sections[name] = dict(value)
        else:
            sections.setdefault(TOP, {})[name] = value
    return sections


def _order(entry: Any) -> tuple[int, str]:
    """Entries that mill did not write come first; reading them reports what is wrong."""
    if not isinstance(entry, Mapping):
        return 0, ""
    order = entry.get("order", 0)
    return order if isinstance(order, int) else 0, str(entry.get("id", ""))


# What a run has spent.

Interval = tuple[float, float]


def spent_so_far(folder: RunFolder) -> tuple[Amounts, float]:
    """The tokens of a run by account, and the wall time in which any process worked on it."""
    states = [*{**_earlier_sessions(folder), **read_sessions(folder)}.values()]
    return _summed(states), _covered(map(_interval, states))


def _earlier_sessions(folder: RunFolder) -> dict[str, SessionState]:
    """The sessions of the manifest, which is all that is known of one without a file, as of earlier versions."""
    sessions = read_entries(folder, MANIFEST, "sessions", SessionEntry)
    return {
        name: SessionState(
            host="",
            machine="",
            pid=0,
            tasks=[],
            started=_timestamp(one.started),
            seconds=max(0.0, one.seconds),
            spent={MODEL: TokenUsage(one.prompt_tokens, one.output_tokens, reasoning=one.reasoning_tokens)},
        )
        for name, one in sessions.items()
    }


def _timestamp(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def _summed(states: Iterable[SessionState]) -> Amounts:
    total: Amounts = {}
    for account, usage in (pair for state in states for pair in state.spent.items()):
        total[account] = total.get(account, NO_TOKENS) + usage
    return total


def _interval(state: SessionState) -> Interval:
    return state.started, state.started + state.seconds


def _covered(intervals: Iterable[Interval]) -> float:
    """The length of the union of intervals: what several processes do at the same time counts once."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


# Processes.


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
