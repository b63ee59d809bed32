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
    """A signal inside this context has its effect at the end, or with `repeat=False`, where the process ends anyway, none. A
    second one has it at once.

    A user may press Ctrl-C twice, and where one of several ranks ends, the others are interrupted by it and by the launcher.
    """
    received: list[int] = []
    handlers = {number: signal.getsignal(number) for number in SIGNALS}

    def restore() -> None:
        for number, handler in handlers.items():
            if handler not in (None, signal.SIG_IGN):
                signal.signal(number, handler)

    def defer(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            restore()
            signal.raise_signal(number)

    if threading.current_thread() is not threading.main_thread():  # the only one that signals interrupt
        yield
        return
    for number, handler in handlers.items():
        if handler not in (None, signal.SIG_IGN):  # of another language, or of nohup
            signal.signal(number, defer)
    try:
        yield
    finally:
        restore()
    if received and repeat:
        signal.raise_signal(received[0])
