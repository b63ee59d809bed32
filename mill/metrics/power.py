"""What a number of samples can show: the smallest loss of accuracy that McNemar's test would find."""

from __future__ import annotations

import math
from functools import lru_cache

from mill.metrics.estimate import beta_cdf

POWER = 0.8  # how often a loss that counts as detectable is found
_PRECISION = 1e-4  # of a share
_MOST_TERMS = 100  # of the sum over numbers of changed samples
_SPREAD = 6.0  # standard deviations of that number on either side


def detectable_loss(n: int, gains: float, level: float = 0.05) -> float | None:
    """The smallest loss of accuracy that McNemar's exact test at `level` finds with a probability of `POWER`, where `gains`
    is the share of samples that only the candidate answers correctly. None where no loss would be found: without a gain
    the test needs six losses at 5 %.

    The power is computed, not simulated: the number of changed samples is binomial, and so are the losses among them.
    """
    most = 1.0 - 2 * gains
    if n < 1 or power(n, most, gains, level) < POWER:
        return None
    low, high = 0.0, most
    while high - low > _PRECISION:
        middle = (low + high) / 2
        low, high = (low, middle) if power(n, middle, gains, level) >= POWER else (middle, high)
    return high


def power(n: int, loss: float, gains: float, level: float = 0.05) -> float:
    """The probability that McNemar's exact test finds that accuracy fell, if it fell by `loss`."""
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
    low, high = changed // 2, changed + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if 2 * _at_least(middle, changed, 0.5) < level else (middle, high)
    return high


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
