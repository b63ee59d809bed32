"""Latency, tokens and cost of runs: what an answer takes, and what a right one costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from mill.view.filters import SampleFilter
from mill.view.index import ResultsIndex
from mill.view.queries import files_of, find_run, samples_where, status_counts

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1.0}
BINS = 40
PER_PRICE = 1_000_000  # prices are per million tokens


def usage_of(index: ResultsIndex, run: str, price_in: float = 0.0, price_out: float = 0.0, task: str = "") -> dict[str, Any]:
    """`cost` is None without prices; per right answer, None where no answer is right."""
    info, counts = find_run(index, run), status_counts(index, run, task)
    sums, times = _sums(index, run, task), _times(index, run, task)
    cost = (sums["prompt_tokens"] * price_in + sums["output_tokens"] * price_out) / PER_PRICE
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
        "cost": cost if price_in or price_out else None,
        "cost_per_right": cost / right if right and (price_in or price_out) else None,
    }


def _sums(index: ResultsIndex, run: str, task: str) -> dict[str, Any]:
    clause = samples_where(index, SampleFilter(run), files_of(index, run, task))
    query = (
        "SELECT coalesce(sum(prompt_tokens), 0) AS prompt_tokens, coalesce(sum(output_tokens), 0) AS output_tokens "
        f"FROM samples WHERE {clause.text}"
    )
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
