"""Standard output that reports in one line why it cannot be written to, also where click or rich writes."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mill.api.errors import MillError


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
