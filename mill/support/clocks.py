"""Where the time of a run goes: seconds by phase. Each second counts in the innermost phase that is open."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

START, HASHING, PLANNING, LOADING, PROBING = "start", "hashing weights", "planning", "loading", "probing"
VERIFYING = "verifying"
TOKENIZING, FORWARD, DECODING = "tokenizing", "forward passes", "decoding"
RECORDING, SCORING, WRITING, OTHER = "recording", "scoring", "writing", "other"
PHASES = (
    *(START, HASHING, PLANNING, LOADING, PROBING),
    *(TOKENIZING, FORWARD, DECODING, VERIFYING, RECORDING, SCORING, WRITING, OTHER),
)


class Stopwatch:
    """Seconds by phase. Before the first phase a process starts; outside of all phases it does something else."""

    def __init__(self) -> None:
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


_main = Stopwatch()


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Count the time inside as this phase. Other threads work beside the main thread: theirs is not counted again."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _main.phase(name):
        yield


def take_seconds() -> dict[str, float]:
    """The main thread's seconds by phase since the last call."""
    return _main.take()


def add_seconds(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """Phase by phase."""
    total = {name: one.get(name, 0.0) + other.get(name, 0.0) for name in PHASES}
    return {name: seconds for name, seconds in total.items() if seconds}
