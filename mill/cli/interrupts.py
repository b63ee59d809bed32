"""Interrupted commands: SIGTERM, which schedulers send, ends one as Ctrl-C does."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING

from mill.api.errors import Interrupted

if TYPE_CHECKING:
    from sys import UnraisableHookArgs


RETRY_S = 0.05


def interrupt_on_sigterm() -> list[int]:
    """Raise KeyboardInterrupt on SIGTERM. Returns a list that has the signal once it was received.

    A handler may run inside a `__del__`, a weakref callback or a callback from C. Python reports an exception there to
    `sys.unraisablehook` and discards it, so the hook sets a timer that raises it again.
    """
    received: list[int] = []
    report = sys.unraisablehook

    def terminate(number: int, frame: FrameType | None) -> None:
        received.append(number)
        signal.default_int_handler(number, frame)

    def retry(discarded: UnraisableHookArgs) -> None:
        in_main = threading.current_thread() is threading.main_thread()  # the only one that signals interrupt
        if in_main and issubclass(discarded.exc_type, KeyboardInterrupt):
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, RETRY_S)
        else:
            report(discarded)

    signal.signal(signal.SIGTERM, terminate)
    sys.unraisablehook = retry
    return received


def interrupted(how: str = "the same command") -> Interrupted:
    return Interrupted(f"interrupted; all completed requests are recorded: {how} resumes from there")
