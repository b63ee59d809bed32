"""What mill says: printable text, warnings and progress.

Untrusted text (model output, server messages, names in files) is made safe to print on a terminal or in a log: all output
goes through `echo`, or through the tables and the console of `mill.report.tables`.

Warnings are what a user must know while the work continues. They go to the logger `mill`, each text once a call: a
program that embeds mill controls them with `logging`, and the command line prints them on standard error
(`mill/cli/main.py`). Those about a model, a task or a check are stored in the manifest and the results as well.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from mill.support.secrets import scrub

# C0 and C1 controls but tab and newline, DEL, marks that change the text direction, and lone surrogates.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
LONGEST_MESSAGE = 2000  # characters
_BLANKS = re.compile(r"\s+")


def utf8(text: str) -> bytes:
    """UTF-8 of any text; a lone surrogate, which has none, as `\\udXXX`."""
    return text.encode("utf-8", "backslashreplace")


def printable(text: str) -> str:
    """The text with every control character shown as an escape (`\\x1b`), so that none reaches the terminal."""
    return _CONTROLS.sub(lambda match: f"\\x{ord(match[0]):02x}" if ord(match[0]) < 256 else f"\\u{ord(match[0]):04x}", text)


def one_line(text: str) -> str:
    """`printable` text in a single line."""
    return printable(_BLANKS.sub(" ", text).strip())


def message_line(text: str) -> str:
    """`one_line` for messages; a long one, such as one that names what is much too long, is cut."""
    line = one_line(text)
    return line if len(line) <= LONGEST_MESSAGE else f"{line[:LONGEST_MESSAGE]} [...]"


def echo(text: str, *, err: bool = False) -> None:
    """Print one line in one write, since other processes may write too. A line break in the text becomes a space."""
    stream = sys.stderr if err else sys.stdout
    stream.write(printable(" ".join(text.splitlines())) + "\n")
    stream.flush()


def echo_data(text: str) -> None:
    """Print a document (CSV, JSON, Markdown): unchanged to a file or a pipe, without control characters to a terminal."""
    sys.stdout.write(printable(text) if sys.stdout.isatty() else utf8(text).decode())
    sys.stdout.flush()


def describe(error: BaseException) -> str:
    """An exception in one short line, also one whose own __str__ fails."""
    try:
        lines = [line.strip() for line in scrub(str(error)).strip().split("\n") if line.strip()]
        first = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])[:300]
    except Exception:
        first = ""
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


logger = logging.getLogger("mill")
_PROCESS: set[str] = set()
_logged: ContextVar[set[str]] = ContextVar("warnings of the call", default=_PROCESS)


def warn(text: str) -> None:
    """Log a warning as one printable line, once for each text of a call."""
    text, logged = message_line(scrub(text)), _logged.get()
    if text not in logged:
        logged.add(text)
        logger.warning("%s", text)


@contextmanager
def own_warnings() -> Iterator[None]:
    """A call: inside this context, and in the threads that are started with a copy of it, each text is logged again."""
    token = _logged.set(set())
    try:
        yield
    finally:
        _logged.reset(token)


PLAIN_INTERVAL_S = 10.0
ESTIMATE_AFTER_S, ESTIMATE_AFTER_SHARE = 3.0, 0.02  # before that an estimate of the time left means nothing


@dataclass
class TokenCount:
    """Tokens of the requests in flight: how many will be computed, as far as the backend has planned, and how many are."""

    planned: int = 0
    computed: int = 0
    prompts: int = 0
    """Computed tokens of prompts whose answers are generated, which take most of the time."""


class Progress:
    """Counts completed requests of one kind. Use as a context manager.

    Requests may differ a hundredfold in length, and many complete in one pass. So rate and time left are those of tokens
    where the backend plans them (`tokens`), else those of requests.
    """

    def __init__(
        self, title: str, total: int, *, quiet: bool = False, tokens: Callable[[], TokenCount | None] = lambda: None
    ) -> None:
        self.title, self.total, self.done, self.failed = one_line(title), total, 0, 0
        self._tokens = tokens
        self._quiet = quiet or total == 0
        self._bar: Any = None
        self._last_done = 0
        self._started = self._last_line = time.monotonic()

    def __enter__(self) -> Progress:
        if not self._quiet and sys.stderr.isatty():
            self._open_bar()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif not self._quiet and self.done > self._last_done:
            self._print_line()

    def advance(self, *, failed: bool = False) -> None:
        self.done += 1
        self.failed += failed
        if self._bar is not None:
            left = self.seconds_left()
            texts = {"rate": self._rate(), "left": "" if left is None else _duration(left), "failed": self._failed_text()}
            self._bar.update(self._task, completed=self.done, **texts)
        elif not self._quiet and time.monotonic() - self._last_line > PLAIN_INTERVAL_S:
            self._print_line()

    def seconds_left(self) -> float | None:
        """None as long as too little is done for an estimate."""
        elapsed, tokens = time.monotonic() - self._started, self._tokens()
        share = self.done / max(1, self.total)
        if tokens is not None and tokens.computed < tokens.planned:
            share = tokens.computed / tokens.planned
        if elapsed < ESTIMATE_AFTER_S or share < ESTIMATE_AFTER_SHARE:
            return None
        return elapsed * (1 - share) / share

    def _open_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.fields[failed]}", style="red"),
        )
        self._bar = RichProgress(*columns, console=Console(stderr=True), refresh_per_second=4)
        self._bar.start()
        self._task = self._bar.add_task(self.title, total=self.total, rate="", left="", failed="")

    def _rate(self) -> str:
        elapsed, tokens = max(time.monotonic() - self._started, 1e-9), self._tokens()
        if tokens is not None and tokens.computed:
            return f"{tokens.computed / elapsed:,.0f} tokens/s"
        each_second = self.done / elapsed
        return f"{each_second:,.1f}/s" if each_second >= 0.1 else f"{60 * each_second:,.1f}/min"

    def _failed_text(self) -> str:
        return f"{self.failed} failed" if self.failed else ""

    def _print_line(self) -> None:
        self._last_line, self._last_done = time.monotonic(), self.done
        parts = [f"{self.title}: {self.done}/{self.total}", self._rate()]
        left = self.seconds_left()
        if self.done < self.total and left is not None:
            parts.append(_duration(left))
        if self.failed:
            parts.append(self._failed_text())
        echo(", ".join(parts), err=True)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min left"
    return f"{minutes} min {rest} s left" if minutes else f"{rest} s left"
