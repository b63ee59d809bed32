"""Progress of runs that are at work: counted from their record files, which grow by a line for each response."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mill.api.errors import RunError
from mill.api.storage import open_regular
from mill.runs.advisory_lock import LivenessWatcher
from mill.view.run_info import RunInfo

WINDOW_S = 60.0  # over which the rate is measured
_BLOCK = 1 << 20


@dataclass
class _Growth:
    """The record of one run: bytes and lines read so far of each file, and counts over time."""

    ends: dict[str, int] = field(default_factory=dict)
    lines: int = 0
    history: deque[tuple[float, int]] = field(default_factory=deque)


class LiveProgress:
    """Remembers how far record files were read, so that only what was appended is read. Several threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # two threads would count the same lines twice
        self._runs: dict[str, _Growth] = {}
        self._watchers: dict[str, LivenessWatcher] = {}

    def of(self, run: RunInfo, requests: int) -> dict[str, Any] | None:
        """None for a run on which no process works. `requests` are those of its samples, as far as they are known."""
        with self._lock:
            return self._of(run, requests)

    def _of(self, run: RunInfo, requests: int) -> dict[str, Any] | None:
        watcher = self._watchers.setdefault(run.uid, LivenessWatcher(run.path))
        if not watcher.alive():
            self._runs.pop(run.uid, None)
            return None
        growth = self._runs.setdefault(run.uid, _Growth())
        _count_lines(growth, run.path / "record")
        now = time.monotonic()
        growth.history.append((now, growth.lines))
        while len(growth.history) > 2 and now - growth.history[0][0] > WINDOW_S:
            growth.history.popleft()
        since, before = growth.history[0]
        rate = (growth.lines - before) / (now - since) if now - since > 1 else None
        left = max(0, requests - growth.lines)
        return {
            "responses": growth.lines,
            "requests": max(requests, growth.lines),
            "rate": rate,
            "seconds_left": left / rate if rate else None,
        }


def _count_lines(growth: _Growth, folder: Path) -> None:
    for file in sorted(folder.glob("*.jsonl")):
        try:
            with open_regular(file) as handle:
                handle.seek(growth.ends.get(file.name, 0))
                while block := handle.read(_BLOCK):
                    growth.lines += block.count(b"\n")
                    growth.ends[file.name] = growth.ends.get(file.name, 0) + len(block)
        except (OSError, RunError):  # removed meanwhile
            continue
