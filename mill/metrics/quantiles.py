"""Percentiles of values that come in groups, such as KL at the positions of texts, with their 95 % intervals."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence

from mill.metrics.distributions import beta_cdf, t_quantile
from mill.metrics.estimate import TAIL, Estimate, around
from mill.metrics.paired import clustered_error, percentile

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
    by_rank = _effective_size(ranks)
    found = {}
    for name, share in shares.items():
        value = percentile(ordered, share)
        effective = min(by_rank, _effective_size([[float(one <= value) for one in group] for group in groups]))
        low, high = _bounds(ordered, share, effective, lowest)
        if share ** len(groups) > TAIL:
            high = math.inf
        found[name] = Estimate(value, None, min(low, value), max(high, value), n)
    return found


def _effective_size(groups: Groups) -> float:
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

    first = _first(lambda index: not too_low(index), n)
    last = _first(high_enough, n)
    return ordered[first - 1] if first else lowest, ordered[last] if last < n else math.inf


def _first(holds: Callable[[int], bool], n: int) -> int:
    """The first index for which a condition holds that holds for all after it; n if there is none."""
    return bisect_left(range(n), True, key=holds)
