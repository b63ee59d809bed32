"""The process of a command: its standard output, SIGTERM, which ends it as Ctrl-C does, and its end."""

from __future__ import annotations

import atexit
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from mill.api.errors import Interrupted, MillError

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


def end_process(code: int) -> None:
    """Do what the interpreter does at its end, up to the point where it frees memory. What fails here, such as output that
    cannot be flushed, is left to the interpreter."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except (Exception, KeyboardInterrupt):
        return
    os._exit(code)


class OutputError(MillError):
    """Standard output cannot be written to: a disk is full."""

    exit_code = 1


class StandardOutput(io.TextIOWrapper):
    """A closed pipe stays a BrokenPipeError: its reader wants no more, which is no error."""

    def write(self, text: str) -> int:
        with _one_line_errors():
            return super().write(text)

    def flush(self) -> None:
        with _one_line_errors():
            super().flush()


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write to standard output: {error.strerror or error}") from error


def open_output() -> None:
    """Replace `sys.stdout`. A stream that was closed (`>&-`) gets nothing; a character that one cannot encode is escaped."""
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")
    if sys.stdout is None:
        discard_output()
    elif isinstance(out := sys.stdout, io.TextIOWrapper):
        sys.stdout = StandardOutput(
            out.buffer, out.encoding, "backslashreplace", line_buffering=out.line_buffering, write_through=out.write_through
        )
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors="backslashreplace")


def discard_output() -> None:
    """Nothing more is written to standard output, also not when Python flushes it at exit."""
    sys.stdout = Path(os.devnull).open("w")
