"""The process of a command: its standard output, SIGTERM, which ends it as Ctrl-C does, and its end."""

from __future__ import annotations

import atexit
import io
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from mill.api.errors import Interrupted


def interrupt_on_sigterm() -> list[int]:
    """Raise KeyboardInterrupt on SIGTERM. Returns a list that has the signal once it was received."""
    received: list[int] = []

    def terminate(number: int, frame: FrameType | None) -> None:
        received.append(number)
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGTERM, terminate)
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


def open_output() -> None:
    """A stream that was closed (`>&-`) gets nothing; a character that one cannot encode is escaped."""
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")
    if sys.stdout is None:
        discard_output()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def discard_output() -> None:
    """Nothing more is written to standard output, also not when Python flushes it at exit."""
    sys.stdout = Path(os.devnull).open("w")
