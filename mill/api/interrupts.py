"""Work that an interrupt must not cut short, such as the end of a run that was interrupted."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


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
