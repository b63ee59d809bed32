"""Statistics of two runs over the same samples: what pairing tells that two separate intervals do not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from mill.metrics.estimate import NOTHING, Z95, Estimate, around, wilson

MOST_EXACT = 500  # binomials are whole numbers up to here, then products of logarithms


def rate(hits: int, n: int) -> Estimate:
    """A share of n with its Wilson interval."""
    if not n:
        return NOTHING
    p = hits / n
    low, high = wilson(hits, n)
    return Estimate(p, math.sqrt(p * (1 - p) / n), low, high, n)


def mcnemar(regressions: int, improvements: int) -> float:
    """The exact two-sided p-value that as many samples got worse as better: binomial over those that changed."""
    n, k = regressions + improvements, min(regressions, improvements)
    if not n:
        return 1.0
    if n <= MOST_EXACT:
        return min(1.0, float(2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n))
    most = math.lgamma(n + 1) - n * math.log(2)
    tail = math.fsum(math.exp(most - math.lgamma(i + 1) - math.lgamma(n - i + 1)) for i in range(k + 1))
    return min(1.0, 2 * tail)


def rate_difference(worse: int, better: int, n: int) -> Estimate:
    """How much of n was lost, with the interval of Agresti and Min (2005): half a sample is added to each way a pair may
    turn out, so that few samples without a change do not say that nothing can change."""
    if not n:
        return NOTHING
    value = (worse - better) / n
    stderr = math.sqrt(max(0.0, (worse + better) / n - value**2) / (n - 1)) if n > 1 else None
    middle = (worse - better) / (n + 2)
    reach = Z95 * math.sqrt(worse + better + 1 - (worse - better) ** 2 / (n + 2)) / (n + 2)
    return Estimate(value, stderr, max(-1.0, min(value, middle - reach)), min(1.0, max(value, middle + reach)), n)


def mean_of(values: Sequence[float]) -> Estimate:
    """A mean with the normal interval of independent values."""
    n = len(values)
    if not n:
        return NOTHING
    average = math.fsum(values) / n
    if n < 2 or not all(map(math.isfinite, values)):
        return around(average, None, n)
    return around(average, math.hypot(*(value - average for value in values)) / math.sqrt((n - 1) * n), n)


def clustered_mean(groups: Sequence[Sequence[float]]) -> Estimate:
    """The mean over all values of all groups; the error is over groups, since places of one text are not independent.

    A ratio of sums, linearised; `n` counts values.
    """
    groups = [group for group in groups if group]
    n = sum(map(len, groups))
    if not n:
        return NOTHING
    average = math.fsum(value for group in groups for value in group) / n
    if len(groups) < 2 or not math.isfinite(average):
        return around(average, None, n)
    residuals = [math.fsum(group) - average * len(group) for group in groups]
    k = len(groups)
    return around(average, math.hypot(*residuals) * math.sqrt(k / (k - 1)) / n, n)


def inside(estimate: Estimate, first: float = 0.0, last: float = 1.0) -> Estimate:
    """With an interval that does not leave the values that are possible."""
    if estimate.low is None or estimate.high is None:
        return estimate
    return replace(estimate, low=max(first, estimate.low), high=min(last, estimate.high))


def exponential(estimate: Estimate) -> Estimate:
    """A mean of logarithms as a factor: what a log-ratio of perplexities means."""
    value = _exp(estimate.value)
    if estimate.stderr is None or estimate.low is None or estimate.high is None:
        return around(value, None, estimate.n)
    return Estimate(value, value * estimate.stderr, _exp(estimate.low), _exp(estimate.high), estimate.n)


def p_of_zero(estimate: Estimate) -> float:
    """The two-sided p-value that the true value is 0, by the normal distribution; 1 where there is no error to tell by.

    An infinite value is not 0, and of NaN nothing is known.
    """
    if not math.isfinite(estimate.value):
        return math.nan if math.isnan(estimate.value) else 0.0
    if not estimate.stderr:
        return 1.0 if estimate.stderr is None or estimate.value == 0 else 0.0
    return math.erfc(abs(estimate.value / estimate.stderr) / math.sqrt(2))


def percentile(values: Sequence[float], share: float) -> float:
    """Linear between neighbours, as numpy's default; NaN of nothing. A NaN among the values makes it NaN."""
    if not values or any(map(math.isnan, values)):
        return math.nan
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    if low + 1 >= len(ordered) or ordered[low] == ordered[low + 1]:
        return ordered[low]
    return ordered[low] + (ordered[low + 1] - ordered[low]) * (place - low)


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
