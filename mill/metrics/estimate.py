"""A figure with its standard error and 95 % interval, and how figures of several tasks become one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Z95 = 1.959963984540054


@dataclass(frozen=True)
class Estimate:
    """`n` samples stand behind `value`; a standard error of None means that too few do to tell."""

    value: float
    stderr: float | None
    low: float | None
    high: float | None
    n: int


NOTHING = Estimate(math.nan, None, None, None, 0)


def around(value: float, stderr: float | None, n: int) -> Estimate:
    """The normal interval around a value."""
    if stderr is None:
        return Estimate(value, None, None, None, n)
    return Estimate(value, stderr, value - Z95 * stderr, value + Z95 * stderr, n)


def wilson(successes: float, n: int) -> tuple[float, float]:
    """The Wilson score interval of a proportion: it stays inside 0..1 and does not collapse at 0 or 1."""
    p, z2 = successes / n, Z95 * Z95
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = Z95 / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == n else centre + half
    return low, high


def pool(parts: Sequence[Estimate], *, weighted: bool) -> Estimate:
    """The mean over tasks: by number of samples (each sample counts alike) or plain (each task counts alike)."""
    parts = [part for part in parts if part.n]
    if not parts:
        return NOTHING
    n = sum(part.n for part in parts)
    weights = [part.n / n if weighted else 1 / len(parts) for part in parts]
    value = sum(weight * part.value for weight, part in zip(weights, parts, strict=True))
    errors = [part.stderr for part in parts]
    if any(error is None for error in errors):
        return around(value, None, n)
    variance = sum((weight * (error or 0.0)) ** 2 for weight, error in zip(weights, errors, strict=True))
    mean = around(value, math.sqrt(variance), n)
    if mean.low is None or mean.high is None:
        return mean
    if all(0 <= bound <= 1 for part in parts for bound in (part.low, part.high) if bound is not None):  # proportions
        return Estimate(value, mean.stderr, max(0.0, mean.low), min(1.0, mean.high), n)
    return mean
