"""All runs and checks at a glance, and how far the index is. It imports little: it is what the first page needs."""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mill import __version__
from mill.api.errors import RunError
from mill.store.folder import RunFolder
from mill.store.sample_row import STATUSES
from mill.store.schema import BenchmarkResult, TaskResult, main_metric
from mill.store.session import SessionWatcher
from mill.support.files import open_regular
from mill.view.check_queries import list_checks
from mill.view.index import ResultsIndex
from mill.view.run_info import MILL, RunInfo, run_labels

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
        self._watchers: dict[str, SessionWatcher] = {}

    def of(self, run: RunInfo, requests: int) -> dict[str, Any] | None:
        """None for a run on which no process works. `requests` are those of its samples, as far as they are known."""
        with self._lock:
            watcher = self._watchers.setdefault(run.uid, SessionWatcher(RunFolder(run.path)))
            working = False
            with contextlib.suppress(RunError):  # a damaged file
                working = bool(watcher.at_work())
            if not working:
                self._runs.pop(run.uid, None)
                return None
            growth = self._runs.setdefault(run.uid, _Growth())
            _count_lines(growth, run.path / "record")
            now, lines = time.monotonic(), growth.lines
            growth.history.append((now, lines))
            while len(growth.history) > 2 and now - growth.history[0][0] > WINDOW_S:
                growth.history.popleft()
            since, before = growth.history[0]
        rate = (lines - before) / (now - since) if now - since > 1 else None
        left = max(0, requests - lines) / rate if rate else None
        return {"responses": lines, "requests": max(requests, lines), "rate": rate, "seconds_left": left}


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


_SHOWN_METRICS = 3
_MOST_WARNINGS = 50


@dataclass
class Viewer:
    """An index, and what is known of the runs at work."""

    index: ResultsIndex
    live: LiveProgress = field(default_factory=LiveProgress)


def overview(viewer: Viewer) -> dict[str, Any]:
    """All runs and checks, and how far the index is."""
    index = viewer.index
    runs = list(index.runs.values())  # once: another thread replaces them
    files: dict[str, list[Any]] = {}
    for row in index.database.connection().execute("SELECT run, statuses, damaged FROM files"):
        files.setdefault(row["run"], []).append(row)
    labels, live, warnings = run_labels(runs), _live(viewer, runs), index.state.warnings
    more = len(warnings) - _MOST_WARNINGS
    return {
        "mill": __version__,
        "folder": str(index.root),
        **_index_progress(index),
        "warnings": [*warnings[:_MOST_WARNINGS], *([f"and {more} more warnings"] if more > 0 else [])],
        "runs": [
            {**_run_entry(run, summed(files.get(run.uid, []))), "label": labels[run.uid], "live": live.get(run.uid)}
            for run in runs
        ],
        "checks": list_checks(index),
    }


def update(viewer: Viewer) -> dict[str, Any]:
    """What changes while pages are open: the version of the index, and the progress of runs at work."""
    return {**_index_progress(viewer.index), "live": _live(viewer, list(viewer.index.runs.values()))}


def _index_progress(index: ResultsIndex) -> dict[str, Any]:
    state = index.state
    return {
        "version": state.version,
        "syncing": state.syncing,
        "indexed": [state.bytes_done, state.bytes_total],
        "search": search_progress(index),
    }


def _live(viewer: Viewer, runs: Sequence[RunInfo]) -> dict[str, dict[str, Any]]:
    query = "SELECT run, sum(requests) FROM files GROUP BY run"
    requests = dict(map(tuple, viewer.index.database.connection().execute(query)))
    own = (run for run in runs if run.tool == MILL)
    return {run.uid: live for run in own if (live := viewer.live.of(run, requests.get(run.uid) or 0)) is not None}


def summed(files: Iterable[Any]) -> dict[str, int]:
    """How many samples of several files are right, wrong, failed and so on, and how many lines are damaged."""
    counts = {**dict.fromkeys(STATUSES, 0), "damaged": 0}
    for row in files:
        for name, count in json.loads(row["statuses"] or "{}").items():
            counts[name] += count
        counts["damaged"] += row["damaged"] or 0
    return counts


def _run_entry(run: RunInfo, counts: Mapping[str, int]) -> dict[str, Any]:
    sessions = run.manifest.get("sessions", [])
    last = sessions[-1] if sessions else {}
    results: dict[str, TaskResult | BenchmarkResult] = {**run.results.benchmarks, **run.results.tasks}
    scores = []
    for name, result in results.items():
        if metric := main_metric(result.metrics):
            one = result.metrics[metric]
            value = one.value if math.isfinite(one.value) else None
            scores.append({"name": name, "metric": metric, "value": value, "low": one.low, "high": one.high})
    return {
        "uid": run.uid,
        "name": run.name,
        "model": run.model,
        "backend": run.manifest.get("model", {}).get("backend", ""),
        "tool": run.tool,
        "settings": run.settings,
        "tasks": run.tasks,
        "of_check": run.of_check,
        "error": run.error,
        "counts": dict(counts),
        "started": last.get("started", ""),
        "ended": last.get("ended", ""),
        "seconds": sum(float(session.get("seconds") or 0.0) for session in sessions),
        "scores": scores[:_SHOWN_METRICS],
        "more_scores": max(0, len(scores) - _SHOWN_METRICS),
    }


def search_progress(index: ResultsIndex) -> dict[str, int]:
    """How many samples can be searched, of how many."""
    query = "SELECT coalesce(sum(max(0, min(searched, last) - first + 1)), 0), coalesce(sum(last - first + 1), 0) FROM files"
    done, total = index.database.connection().execute(query).fetchone()
    return {"done": done, "total": total}
