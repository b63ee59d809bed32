"""Where the time of a run goes: seconds by phase. Each second counts in the innermost phase that is open."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

START, HASHING, PLANNING, LOADING, PROBING = "start", "hashing weights", "planning", "loading", "probing"
VERIFYING = "verifying"
TOKENIZING, FORWARD, DECODING = "tokenizing", "forward passes", "decoding"
RECORDING, SCORING, WRITING, OTHER = "recording", "scoring", "writing", "other"
PHASES = (
    *(START, HASHING, PLANNING, LOADING, PROBING),
    *(TOKENIZING, FORWARD, DECODING, VERIFYING, RECORDING, SCORING, WRITING, OTHER),
)


class Stopwatch:
    """A thread's seconds by phase. Before the first phase a process starts; outside of all phases it does something else."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self._seconds: dict[str, float] = {START: time.process_time()}  # the interpreter, and what was imported before
        self._open: list[str] = []
        self._outside, self._since = START, time.perf_counter()

    def _count(self) -> None:
        now = time.perf_counter()
        name = self._open[-1] if self._open else self._outside
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._since
        self._since = now

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._count()
        self._outside = OTHER
        self._open.append(name)
        try:
            yield
        finally:
            self._count()
            self._open.pop()

    def take(self) -> dict[str, float]:
        """The seconds since the last call, in the order of PHASES."""
        self._count()
        taken, self._seconds = self._seconds, {}
        return {name: taken[name] for name in PHASES if name in taken}


_watch: ContextVar[Stopwatch] = ContextVar("stopwatch of the call", default=Stopwatch())  # noqa: B039


@contextmanager
def own_clock() -> Iterator[None]:
    """A call in a thread of its own, beside others, has a stopwatch of its own."""
    if threading.current_thread() is _watch.get().thread:
        yield
        return
    token = _watch.set(watch := Stopwatch())
    watch.take()
    try:
        yield
    finally:
        _watch.reset(token)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Count the time inside as this phase. Threads of a call work beside its own: theirs is not counted again."""
    watch = _watch.get()
    if threading.current_thread() is not watch.thread:
        yield
        return
    with watch.phase(name):
        yield


def take_seconds() -> dict[str, float]:
    """The seconds of the call by phase since this was last asked."""
    return _watch.get().take()


def add_seconds(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """Phase by phase."""
    total = {name: one.get(name, 0.0) + other.get(name, 0.0) for name in PHASES}
    return {name: seconds for name, seconds in total.items() if seconds}
