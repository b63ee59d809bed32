"""All runs and checks at a glance, and how far the index is. It imports little: it is what the first page needs."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mill import __version__
from mill.runs.schema import BenchmarkResult, TaskResult
from mill.view.check_list import list_checks
from mill.view.index import ResultsIndex
from mill.view.live import LiveProgress
from mill.view.run_info import RunInfo, run_labels
from mill.view.sample_line import STATUSES

_SHOWN_METRICS = 3
_QUIET_S = 1.0


@dataclass
class Viewer:
    """An index, and what is known of the runs at work."""

    index: ResultsIndex
    live: LiveProgress = field(default_factory=LiveProgress)
    requested: float = 0.0
    """When the last request came, by the monotonic clock."""

    def busy(self) -> bool:
        """Whether pages send requests, so that work in the background waits."""
        return time.monotonic() - self.requested < _QUIET_S


def overview(viewer: Viewer) -> dict[str, Any]:
    """All runs and checks, and how far the index is."""
    index = viewer.index
    runs = list(index.runs.values())  # once: another thread replaces them
    counts, labels = _all_counts(index), run_labels(runs)
    none = {**dict.fromkeys(STATUSES, 0), "damaged": 0, "requests": 0}
    return {
        "mill": __version__,
        "folder": str(index.root),
        "version": index.state.version,
        "syncing": index.state.syncing,
        "indexed": [index.state.bytes_done, index.state.bytes_total],
        "search": search_progress(index),
        "warnings": index.state.warnings[:50],
        "runs": [_run_entry(viewer, run, counts.get(run.uid, none), labels[run.uid]) for run in runs],
        "checks": list_checks(index),
    }


def _all_counts(index: ResultsIndex) -> dict[str, dict[str, int]]:
    counts: dict[str, dict[str, int]] = {}
    for row in index.database.connection().execute("SELECT run, statuses, damaged, requests FROM files"):
        entry = counts.setdefault(row["run"], {**dict.fromkeys(STATUSES, 0), "damaged": 0, "requests": 0})
        for name, count in json.loads(row["statuses"] or "{}").items():
            entry[name] += count
        entry["damaged"] += row["damaged"] or 0
        entry["requests"] += row["requests"] or 0
    return counts


def _run_entry(viewer: Viewer, run: RunInfo, counts: Mapping[str, int], label: str) -> dict[str, Any]:
    sessions = run.manifest.get("sessions", [])
    last = sessions[-1] if sessions else {}
    results: dict[str, TaskResult | BenchmarkResult] = {**run.results.benchmarks, **run.results.tasks}
    scores = [
        {"name": name, "metric": metric, "value": _number(estimate.value), "low": estimate.low, "high": estimate.high}
        for name, result in results.items()
        for metric, estimate in list(result.metrics.items())[:1]
    ]
    return {
        "uid": run.uid,
        "name": run.name,
        "label": label,
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
        "live": viewer.live.of(run, counts["requests"]) if run.tool == "mill" else None,
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def search_progress(index: ResultsIndex) -> dict[str, int]:
    """How many samples can be searched, of how many."""
    query = "SELECT coalesce(sum(max(0, min(searched, last) - first + 1)), 0), coalesce(sum(last - first + 1), 0) FROM files"
    done, total = index.database.connection().execute(query).fetchone()
    return {"done": done, "total": total}
