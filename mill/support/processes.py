"""Threads whose result is needed later, interrupts that wait until files are whole, and the rank of this process."""

from __future__ import annotations

import contextvars
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Generic, TypeVar

T = TypeVar("T")
WAKE_S = 1.0  # the longest wait in which an interrupt may go unseen


class Background(Generic[T]):
    """Calls a function at once, in a thread that does not outlive the process and that may do what its call may."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._result: T | None = None
        self._error: BaseException | None = None
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._function()
        except BaseException as error:
            self._error = error

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> T:
        """What the function returned, as soon as it has; raises what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


SIGNALS = (signal.SIGINT, signal.SIGTERM)


def next_of(results: queue.SimpleQueue[T]) -> T:
    """What comes next. An interrupt in the instant before a wait does not end it, so that waits are short."""
    while True:
        with suppress(queue.Empty):
            return results.get(timeout=WAKE_S)


@contextmanager
def deferred_interrupt(*, repeat: bool = True) -> Iterator[None]:
    """A first SIGINT or SIGTERM takes effect at the end of this context; with `repeat=False`, for a process that ends
    anyway, it has none. A second one takes effect at once.

    A user may press Ctrl-C twice, and where one of several ranks ends, the others are interrupted by it and by the launcher.
    """
    in_main = threading.current_thread() is threading.main_thread()  # the only one that signals interrupt
    found = {number: signal.getsignal(number) for number in SIGNALS if in_main}
    handlers = {number: one for number, one in found.items() if one not in (None, signal.SIG_IGN)}  # not of nohup or of C
    received: list[int] = []

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    def defer(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            restore()
            signal.raise_signal(number)

    for number in handlers:
        signal.signal(number, defer)
    try:
        yield
    finally:
        restore()
    if received and repeat:
        signal.raise_signal(received[0])


def rank() -> int:
    return _number("RANK", 0) if world_size() > 1 else 0


def local_rank() -> int:
    """The rank on this machine, which is the index of its accelerator."""
    return _number("LOCAL_RANK", rank()) if world_size() > 1 else 0


def world_size() -> int:
    """1 without a launcher; WORLD_SIZE without RANK does not count."""
    return max(1, _number("WORLD_SIZE", 1)) if "RANK" in os.environ else 1


def _number(name: str, otherwise: int) -> int:
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return otherwise
