"""Latency and tokens of runs: what an answer takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mill.view.filters import SampleFilter
from mill.view.index import ResultsIndex
from mill.view.queries import files_of, find_run, samples_where, status_counts

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}
BINS = 40


def usage_of(index: ResultsIndex, run: str, task: str = "") -> dict[str, Any]:
    """Of a run, or of one of its tasks; `tasks` has the tokens of each task."""
    info, counts = find_run(index, run), status_counts(index, run, task)
    files = files_of(index, run, task)
    of_tasks = {file["task"]: _sums(index, {number: file}) for number, file in files.items()}
    sums = {name: sum(one[name] for one in of_tasks.values()) for name in ("prompt_tokens", "output_tokens")}
    times = _times(index, run, task)
    right = counts["right"]
    tokens = sums["prompt_tokens"] + sums["output_tokens"]
    sessions = info.manifest.get("sessions", [])
    spent = sum(float(session.get("answering_s") or session.get("seconds") or 0.0) for session in sessions)
    computed = sum(int(session.get("computed") or 0) for session in sessions)
    generated = sum(int(session.get("output_tokens") or 0) for session in sessions)
    return {
        "run": run,
        "samples": sum(counts[name] for name in ("right", "wrong", "graded", "unscored", "failed")),
        "right": right,
        **sums,
        **times,
        "requests_per_s": computed / spent if spent and computed else None,
        "tokens_per_s": generated / spent if spent and generated else None,
        "tokens_per_right": tokens / right if right and tokens else None,
        "tasks": of_tasks,
    }


def _sums(index: ResultsIndex, files: Mapping[int, Any]) -> dict[str, Any]:
    """The tokens of samples, and how many have a number of them."""
    clause = samples_where(index, SampleFilter(), files)
    tokens = (f"coalesce(sum({name}), 0) AS {name}" for name in ("prompt_tokens", "output_tokens"))
    counted = "count(coalesce(prompt_tokens, output_tokens)) AS samples"
    query = f"SELECT {counted}, {', '.join(tokens)} FROM samples WHERE {clause.text}"
    return dict(index.database.connection().execute(query, clause.parameters).fetchone())


def _times(index: ResultsIndex, run: str, task: str) -> dict[str, Any]:
    """Quantiles and a histogram of the seconds of an answer."""
    key = ("times", run, task, index.state.version)
    known: dict[str, Any] | None = index.remembered.get(key)
    if known is not None:
        return known
    seconds = _seconds(index, run, task)
    quantiles = {name: _quantile(seconds, share) for name, share in QUANTILES.items()} if seconds else {}
    found = {"latency": quantiles, "histogram": _histogram(seconds)}
    return {**index.remember(key, found)}


def _seconds(index: ResultsIndex, run: str, task: str) -> list[float]:
    clause = samples_where(index, SampleFilter(run), files_of(index, run, task))
    query = f"SELECT json_group_array(seconds) FROM samples WHERE {clause.text} AND seconds IS NOT NULL"
    text: str = index.database.connection().execute(query, clause.parameters).fetchone()[0]
    return sorted(msgspec.json.decode(text, type=list[float]))  # one text is read faster than a row for each number


def _quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of values does not exceed."""
    return values[max(0, math.ceil(share * len(values)) - 1)]


def _histogram(values: Sequence[float]) -> list[dict[str, float]]:
    """Counts in bins of equal width on a logarithmic scale: latencies have a long tail."""
    positive = [value for value in values if value > 0]
    if not positive:
        return []
    low, high = math.log10(positive[0]), math.log10(positive[-1])
    if high - low < 1e-9:  # the samples of one batch
        return [{"from": positive[0], "to": positive[-1], "n": len(positive)}]
    width = (high - low) / BINS
    counts = [0] * BINS
    for value in positive:
        counts[min(BINS - 1, int((math.log10(value) - low) / width))] += 1
    return [
        {"from": 10 ** (low + number * width), "to": 10 ** (low + (number + 1) * width), "n": count}
        for number, count in enumerate(counts)
    ]
