"""Statistics of two runs over the same samples: tests, intervals, the smallest loss that McNemar's test would find; and
percentiles of values that come in groups, such as those of texts."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from mill.metrics.estimate import (
    NOTHING,
    TAIL,
    Estimate,
    around,
    beta_cdf,
    exact_interval,
    mean_of,
    t_p_value,
    t_quantile,
    total,
)

Z95 = 1.959963984540054
MAX_EXACT = 500  # binomials are exact integers up to here, then computed by logarithms


def rate(hits: int, n: int) -> Estimate:
    """A share of n with its exact interval."""
    if not n:
        return NOTHING
    p = hits / n
    low, high = exact_interval(hits, n)
    return Estimate(p, math.sqrt(p * (1 - p) / (n - 1)) if n > 1 else None, low, high, n)


def mcnemar(regressions: int, improvements: int) -> float:
    """The exact two-sided p-value of McNemar's test: binomial over the samples that changed."""
    n, k = regressions + improvements, min(regressions, improvements)
    if not n:
        return 1.0
    if n <= MAX_EXACT:
        return min(1.0, float(2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n))
    most = math.lgamma(n + 1) - n * math.log(2)
    tail = math.fsum(math.exp(most - math.lgamma(i + 1) - math.lgamma(n - i + 1)) for i in range(k + 1))
    return min(1.0, 2 * tail)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values of several tests, adjusted by Holm's method so that 5 % is the chance of any false finding among them. NaN,
    where nothing could be tested, stays NaN."""
    order = sorted((p, index) for index, p in enumerate(p_values) if not math.isnan(p))
    adjusted, largest = [math.nan] * len(p_values), 0.0
    for rank, (p, index) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        adjusted[index] = largest
    return adjusted


def rate_difference(worse: int, better: int, n: int) -> Estimate:
    """The lost share of n, with the score interval of Tango (1998): all losses that a test at 5 % does not reject. It does
    not collapse where no sample changed, and covers losses without gains too."""
    if not n:
        return NOTHING
    value = (worse - better) / n
    stderr = math.sqrt(max(0.0, (worse + better) / n - value**2) / (n - 1)) if n > 1 else None
    low = _largest_below(lambda loss: _score_statistic(worse, better, n, loss) > Z95, -1.0, value)
    high = _largest_below(lambda loss: _score_statistic(worse, better, n, loss) > -Z95, value, 1.0)
    return Estimate(value, stderr, low, high, n)


def _score_statistic(worse: int, better: int, n: int, loss: float) -> float:
    """Observed minus expected loss in standard errors, with the most likely rate of gains for this loss."""
    linear = (2 * n - worse + better) * loss - worse - better
    constant = -better * loss * (1 - loss)
    gains = (math.sqrt(max(0.0, linear**2 - 8 * n * constant)) - linear) / (4 * n)
    variance = n * (2 * gains + loss * (1 - loss))
    distance = worse - better - n * loss
    return distance / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, distance) if distance else 0.0


def _largest_below(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Where a condition that holds at the lower end stops to hold."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return high if not holds(high) else low


def bounded_mean(values: Sequence[float]) -> Estimate:
    """A mean of values between 0 and 1. The interval is that of the values with a 0 and a 1 added, so that it does not
    collapse where all values are equal."""
    estimate = mean_of(values)
    if not values or not math.isfinite(estimate.value):
        return estimate
    padded = mean_of([*values, 0.0, 1.0])
    assert padded.low is not None and padded.high is not None
    low, high = min(padded.low, estimate.value), max(padded.high, estimate.value)
    return replace(estimate, low=max(0.0, low), high=min(1.0, high))


def clustered_mean(groups: Sequence[Sequence[float]]) -> Estimate:
    """The mean over all values of all groups; the error is over groups, since positions of one text are not independent.

    A ratio of sums, linearised, with Student's interval; `n` counts values.
    """
    groups = [group for group in groups if group]
    n = sum(map(len, groups))
    if not n:
        return NOTHING
    average = total([value for group in groups for value in group]) / n
    if len(groups) < 2 or not math.isfinite(average):
        return around(average, None, n)
    return around(average, clustered_error(groups, average), n, len(groups) - 1)


def positive_mean(groups: Sequence[Sequence[float]]) -> Estimate:
    """The mean of values that are not negative and mostly small, such as KL. The interval is the larger of Student's and of
    that of the logarithm: a few texts seldom show the largest values."""
    estimate = inside(clustered_mean(groups), last=math.inf)
    if not estimate.stderr or estimate.low is None or not estimate.value:
        return estimate
    half = t_quantile(sum(map(bool, groups)) - 1) * estimate.stderr / estimate.value
    low = min(estimate.low, estimate.value * math.exp(-half))
    return replace(estimate, low=low, high=estimate.value * _exp(half))


def clustered_rate(groups: Sequence[Sequence[float]]) -> Estimate:
    """The share of ones among zeros and ones that come in groups, such as the positions of texts: the exact interval at the
    effective sample size."""
    groups = [group for group in groups if group]
    n = sum(map(len, groups))
    if not n:
        return NOTHING
    p = total([value for group in groups for value in group]) / n
    if not math.isfinite(p):
        return around(p, None, n)
    effective, least = _effective_size(groups), _effective_size([[1.0] * len(group) for group in groups])
    low, high = exact_interval(min(p, 1.0) * effective, effective)
    # At least as long as the interval of equal values.
    low, high = min(low, exact_interval(least, least)[0]), max(high, exact_interval(0, least)[1])
    return Estimate(p, clustered_error(groups, p) if len(groups) > 1 else None, low, high, n)


def _effective_size(groups: Sequence[Sequence[float]]) -> float:
    """The effective sample size. The correlation within groups is estimated with two groups added, one of zeros and one of
    ones: a few groups without a zero do not show whether zeros come in groups."""
    n = sum(map(len, groups))
    typical = max(1, round(n / len(groups)))
    smoothed = [*groups, [0.0] * typical, [1.0] * typical]
    q = sum(map(math.fsum, smoothed)) / sum(map(len, smoothed))
    return min(float(n), q * (1 - q) / clustered_error(smoothed, q) ** 2)


def clustered_error(groups: Sequence[Sequence[float]], average: float) -> float:
    """The standard error of a mean over all values, from the sums of independent groups."""
    residuals = [math.fsum(group) - average * len(group) for group in groups]
    k = len(groups)
    return math.hypot(*residuals) * math.sqrt(k / (k - 1)) / sum(map(len, groups))


def inside(estimate: Estimate, first: float = 0.0, last: float = 1.0) -> Estimate:
    """With the interval clipped to the possible values."""
    if estimate.low is None or estimate.high is None:
        return estimate
    return replace(estimate, low=max(first, estimate.low), high=min(last, estimate.high))


def exponential(estimate: Estimate) -> Estimate:
    """A mean of logarithms as a factor, such as a perplexity ratio."""
    value = _exp(estimate.value)
    if estimate.stderr is None or estimate.low is None or estimate.high is None:
        return around(value, None, estimate.n)
    return Estimate(value, value * estimate.stderr, _exp(estimate.low), _exp(estimate.high), estimate.n)


def p_of_zero(estimate: Estimate, df: float) -> float:
    """The two-sided p-value of a true value of 0, by Student's t; NaN without a standard error.

    It is 0 for an infinite value and NaN for NaN.
    """
    if not math.isfinite(estimate.value):
        return math.nan if math.isnan(estimate.value) else 0.0
    if estimate.stderr is None or df < 1:
        return math.nan
    if not estimate.stderr:  # equal values: the sign test, which few samples cannot pass
        return 1.0 if estimate.value == 0 else float(2.0**-df)
    return t_p_value(estimate.value / estimate.stderr, df)


def percentile(values: Sequence[float], share: float) -> float:
    """Linear between neighbours, as numpy's default. NaN if there are no values or one of them is NaN."""
    if not values or any(map(math.isnan, values)):
        return math.nan
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    if below + 1 >= len(ordered) or ordered[below] == ordered[below + 1]:
        return ordered[below]
    return ordered[below] + (ordered[below + 1] - ordered[below]) * (position - below)


def largest(values: Sequence[float]) -> float:
    """NaN if there are no values or one of them is NaN."""
    return math.nan if not values or any(map(math.isnan, values)) else max(values)


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


Groups = Sequence[Sequence[float]]


def clustered_percentiles(groups: Groups, shares: Mapping[str, float], lowest: float = 0.0) -> dict[str, Estimate]:
    """A percentile of all values for each of `shares`. `lowest` is the smallest possible value.

    The interval has the values at which the exact interval of the share of positions below still contains the percentile's
    own share (Woodruff 1952), at the effective sample size, since positions of one text are not independent. The upper end
    is infinite where the groups are too few to bound the percentile: 10 % of texts could be bad, and 35 texts contain none
    of them in 1 of 40 samples. So p90 needs 36 groups, p95 72 and p99 368. A bootstrap over groups never exceeds the largest
    value that was seen: it covers the p99 of 30 texts in 40 to 90 % of cases.
    """
    groups = [group for group in groups if group]
    ordered = sorted(value for group in groups for value in group)
    n = len(ordered)
    if not n or len(groups) < 2 or any(map(math.isnan, ordered)):
        return {name: around(percentile(ordered, share), None, n) for name, share in shares.items()}
    ranks = [[bisect_left(ordered, value) + bisect_right(ordered, value) for value in group] for group in groups]
    by_rank = _effective_positions(ranks)
    found = {}
    for name, share in shares.items():
        value = percentile(ordered, share)
        effective = min(by_rank, _effective_positions([[float(one <= value) for one in group] for group in groups]))
        low, high = _bounds(ordered, share, effective, lowest)
        if share ** len(groups) > TAIL:
            high = math.inf
        found[name] = Estimate(value, None, min(low, value), max(high, value), n)
    return found


def _effective_positions(groups: Groups) -> float:
    """How many independent values would show the mean of these as well, with the factor of Korn and Graubard (1998) for few
    groups. Equal values do not show how alike the values of a group are: each group counts once."""
    values = [value for group in groups for value in group]
    n, average = len(values), math.fsum(values) / len(values)
    variance, error = math.fsum((value - average) ** 2 for value in values) / n, clustered_error(groups, average)
    effective = float(len(groups)) if not variance else min(float(n), variance / error**2) if error else float(n)
    return effective * (t_quantile(n - 1) / t_quantile(len(groups) - 1)) ** 2


def _bounds(ordered: Sequence[float], share: float, effective: float, lowest: float) -> tuple[float, float]:
    """The largest value that the percentile is at least, and the smallest that it is at most, each at 97.5 %."""
    n = len(ordered)

    def too_low(index: int) -> bool:
        """Whether even the upper end of the share of values below this one is below `share`."""
        below = index / n * effective
        return beta_cdf(share, below + 1, effective - below) >= 1 - TAIL

    def high_enough(index: int) -> bool:
        """Whether even the lower end of the share of values up to this one is at least `share`."""
        up_to = (index + 1) / n * effective
        return beta_cdf(share, up_to, effective - up_to + 1) <= TAIL

    # The first index for which a condition holds that holds for all after it.
    first = bisect_left(range(n), True, key=lambda index: not too_low(index))
    last = bisect_left(range(n), True, key=high_enough)
    return ordered[first - 1] if first else lowest, ordered[last] if last < n else math.inf


POWER = 0.8  # how often enough samples show a loss
_MOST_TERMS = 100  # of the sum over numbers of changed samples
_SPREAD = 6.0  # standard deviations of that number on either side


def power(n: int, loss: float, gains: float, level: float = 0.05) -> float:
    """The probability that McNemar's exact test at `level` finds that accuracy fell, if it fell by `loss`, where `gains` is
    the share of samples that only the candidate answers correctly. It is computed, not simulated: the number of changed
    samples is binomial, and so are the losses among them."""
    changed = min(1.0, loss + 2 * gains)
    if changed <= 0:
        return 0.0
    worse = (loss + gains) / changed
    middle, spread = n * changed, _SPREAD * math.sqrt(n * changed * (1 - changed)) + 1
    first, last = max(0, math.floor(middle - spread)), min(n, math.ceil(middle + spread))
    step = (last - first) // _MOST_TERMS | 1  # odd: the test is a little stricter at even counts than at odd ones
    counts = range(first, last + 1, step)
    weights = [_binomial(n, count, changed) for count in counts]
    found = (weight * _at_least(_fewest(count, level), count, worse) for count, weight in zip(counts, weights, strict=True))
    return math.fsum(found) / math.fsum(weights)


def needed_samples(loss: float, gains: float, level: float = 0.05) -> int:
    """How many samples show such a loss: doubled until they do, then halved intervals."""
    high = 8
    while power(high, loss, gains, level) < POWER:
        high *= 2
    low = high // 2
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle, loss, gains, level) >= POWER else (middle, high)
    return high


@lru_cache(maxsize=16384)
def _fewest(changed: int, level: float) -> int:
    """The fewest losses among changed samples that are significant; one more than there are where none is."""

    def significant(count: int) -> bool:
        return 2 * _at_least(count, changed, 0.5) < level

    return bisect_left(range(changed + 1), True, lo=changed // 2 + 1, key=significant)


def _at_least(count: int, n: int, p: float) -> float:
    """The probability of at least `count` of n."""
    if count <= 0:
        return 1.0
    return beta_cdf(p, count, n - count + 1) if count <= n else 0.0


def _binomial(n: int, count: int, p: float) -> float:
    if p >= 1.0:
        return float(count == n)
    ways = math.lgamma(n + 1) - math.lgamma(count + 1) - math.lgamma(n - count + 1)
    return math.exp(ways + count * math.log(p) + (n - count) * math.log1p(-p))
