"""Progress with rate and time left: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from mill.api.printing import echo, one_line

PLAIN_INTERVAL_S = 10.0


class Progress:
    """Counts completed requests of one kind. Use as a context manager."""

    def __init__(self, title: str, total: int, *, quiet: bool = False) -> None:
        self.title, self.total, self.done, self.failed = one_line(title), total, 0, 0
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
            self._bar.update(self._task, completed=self.done, rate=self._rate_text(), failed=self._failed_text())
        elif not self._quiet and time.monotonic() - self._last_line > PLAIN_INTERVAL_S:
            self._print_line()

    def _open_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[failed]}", style="red"),
        )
        self._bar = RichProgress(*columns, console=Console(stderr=True), refresh_per_second=4)
        self._bar.start()
        self._task = self._bar.add_task(self.title, total=self.total, rate="", failed="")

    def _rate(self) -> float:
        return self.done / max(time.monotonic() - self._started, 1e-9)

    def _rate_text(self) -> str:
        return f"{self._rate():.1f}/s"

    def _failed_text(self) -> str:
        return f"{self.failed} failed" if self.failed else ""

    def _print_line(self) -> None:
        self._last_line, self._last_done = time.monotonic(), self.done
        seconds_left = (self.total - self.done) / max(self._rate(), 1e-9)
        parts = [f"{self.title}: {self.done}/{self.total}", self._rate_text()]
        if self.done < self.total:
            parts.append(f"{seconds_left:.0f} s left")
        if self.failed:
            parts.append(self._failed_text())
        echo(", ".join(parts), err=True)
