"""A value with its standard error and 95 % interval, and the pooled value of several tasks.

The beta and Student's t distribution are here, for intervals and p-values of small samples: pure Python, without scipy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

_TINY = 1e-300
_PRECISION = 3e-15
_MAX_TERMS = 100_000  # of the continued fraction, which needs about the square root of its parameters


def beta_cdf(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function I_x(a, b)."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    if x > (a + 1.0) / (a + b + 2.0):  # the fraction converges quickly on the other side
        return 1.0 - _lower_beta(1.0 - x, b, a)
    return _lower_beta(x, a, b)


def _lower_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b) for an `x` near the mean or below it."""
    return math.exp(_log_weight(x, a, b)) / a * _continued_fraction(x, a, b)


def _log_weight(x: float, a: float, b: float) -> float:
    return math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)


def _continued_fraction(x: float, a: float, b: float) -> float:
    """Lentz's method."""
    c, d = 1.0, 1.0 - (a + b) * x / (a + 1.0)
    d = 1.0 / (d if abs(d) > _TINY else _TINY)
    value = d
    for m in range(1, _MAX_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            d, c = 1.0 + term * d, 1.0 + term / c
            d = 1.0 / (d if abs(d) > _TINY else _TINY)
            c = c if abs(c) > _TINY else _TINY
            step = d * c
            value *= step
        if abs(step - 1.0) < _PRECISION:
            return value
    return value


@lru_cache(maxsize=4096)
def beta_quantile(share: float, a: float, b: float) -> float:
    """Where I_x(a, b) reaches `share`: Newton's method, inside a bracket that only shrinks."""
    low, high = 0.0, 1.0
    x = a / (a + b)
    for _ in range(200):
        gap = beta_cdf(x, a, b) - share
        low, high = (low, x) if gap > 0 else (x, high)
        density = math.exp(_log_weight(x, a, b) - math.log(x) - math.log1p(-x)) if 0.0 < x < 1.0 else 0.0
        following = x - gap / density if density else -1.0
        if not low < following < high:
            following = (low + high) / 2
        if abs(following - x) <= 1e-15 * max(x, 1e-3):
            return following
        x = following
    return x


def t_p_value(t: float, df: float) -> float:
    """The two-sided p-value of Student's t."""
    if math.isnan(t):
        return math.nan
    return 0.0 if math.isinf(t) else beta_cdf(df / (df + t * t), df / 2, 0.5)


@lru_cache(maxsize=4096)
def t_quantile(df: float, confidence: float = 0.95) -> float:
    """Half the length of a two-sided interval of this confidence, in standard errors."""
    x = beta_quantile(1.0 - confidence, df / 2, 0.5)
    return math.sqrt(df * (1.0 - x) / x)


TAIL = 0.025  # probability outside of a 95 % interval, on either side


@dataclass(frozen=True)
class Estimate:
    """A value measured on `n` samples; the standard error is None where they are too few for one."""

    value: float
    stderr: float | None
    low: float | None
    high: float | None
    n: int


NOTHING = Estimate(math.nan, None, None, None, 0)


def around(value: float, stderr: float | None, n: int, df: float | None = None) -> Estimate:
    """Student's interval around a value; the degrees of freedom are n - 1 unless given."""
    if stderr is None:
        return Estimate(value, None, None, None, n)
    half = t_quantile(max(1.0, n - 1 if df is None else df)) * stderr
    return Estimate(value, stderr, value - half, value + half, n)


def exact_interval(successes: float, n: float) -> tuple[float, float]:
    """The interval of Clopper and Pearson: it contains the true proportion in at least 95 % of cases and does not collapse
    at 0 or 1. `n` may be an effective sample size, which need not be an integer."""
    low = 0.0 if successes <= 0 else beta_quantile(TAIL, successes, n - successes + 1)
    high = 1.0 if successes >= n else beta_quantile(1 - TAIL, successes + 1, n - successes)
    return low, high


def is_proportion(estimate: Estimate) -> bool:
    """Whether this is a mean of values that are all 0 or 1, which shows in its standard error."""
    value, n = estimate.value, estimate.n
    if not 0 <= value <= 1 or n < 1:
        return False
    if estimate.stderr is None:
        return n == 1 and value in (0.0, 1.0)
    return math.isclose(estimate.stderr**2 * (n - 1), value * (1 - value), rel_tol=1e-6, abs_tol=1e-12)


def pool(parts: Sequence[Estimate], *, weighted: bool) -> Estimate:
    """The mean over tasks, weighted by the number of samples or with equal weights.

    Tasks without a value are left out; the caller reports how many tasks the mean is over.
    """
    parts = [part for part in parts if part.n]
    if not parts:
        return NOTHING
    n = sum(part.n for part in parts)
    weights = [part.n / n if weighted else 1 / len(parts) for part in parts]
    value = sum(weight * part.value for weight, part in zip(weights, parts, strict=True))
    if any(part.stderr is None for part in parts):
        return around(value, None, n)
    variances = [(weight * (part.stderr or 0.0)) ** 2 for weight, part in zip(weights, parts, strict=True)]
    stderr = math.sqrt(sum(variances))
    if all(map(is_proportion, parts)):
        low, high = _pooled_interval(value, stderr, weights, [part.n for part in parts])
        return Estimate(value, stderr, low, high, n)
    mean = around(value, stderr, n, _satterthwaite(variances, [part.n - 1 for part in parts]))
    if (
        mean.low is not None
        and mean.high is not None
        and all(end is None or 0 <= end <= 1 for part in parts for end in (part.low, part.high))
    ):
        return Estimate(value, stderr, max(0.0, mean.low), min(1.0, mean.high), n)
    return mean


def _pooled_interval(value: float, stderr: float, weights: Sequence[float], counts: Sequence[int]) -> tuple[float, float]:
    """The exact interval at the effective sample size (Korn and Graubard 1998), at most that of equal proportions in all
    tasks: few samples may show no variance where there is some."""
    effective = 1 / sum(weight**2 / n for weight, n in zip(weights, counts, strict=True))
    if stderr:
        effective = min(effective, value * (1 - value) / stderr**2)
    return exact_interval(min(value, 1.0) * effective, effective)


def _satterthwaite(variances: Sequence[float], dfs: Sequence[int]) -> float:
    """The degrees of freedom of a sum of independent estimates."""
    total = sum(variances)
    below = sum(variance**2 / max(1, df) for variance, df in zip(variances, dfs, strict=True))
    return total**2 / below if below and math.isfinite(below) else math.inf


def total(values: Sequence[float]) -> float:
    """A sum: infinite where it is too large for a float, NaN where there are infinities of both signs."""
    try:
        return math.fsum(values)
    except (OverflowError, ValueError):
        return sum(values)


def mean_of(values: Sequence[float]) -> Estimate:
    """A mean with Student's interval of independent values."""
    n = len(values)
    if not n:
        return NOTHING
    average = total(values) / n
    if n < 2 or not all(map(math.isfinite, values)):
        return around(average, None, n)
    return around(average, math.hypot(*(value - average for value in values)) / math.sqrt((n - 1) * n), n)
