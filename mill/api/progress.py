"""Progress with rate and time left: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from mill.api.printing import echo, one_line

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
