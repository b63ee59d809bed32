"""Rules that stop a random order of values as soon as their mean is above a candidate, for many orders at once.

The first two are those of `mill.metrics.sequential`. The others are for comparison: the hedged bets of Waudby-Smith and
Ramdas (2023), their prior-posterior ratio with a prior fitted to the first 200 values (2020), and a z-test without a
correction for repeated looks, which has no guarantee. Orders are rows of values between 0 and 1; a rule returns, for each
order and each look, whether it would stop. The opposite direction is the same rule on 1 - values.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from mill.metrics.sequential import ShareEvidence, shares

STEP = 10  # values between looks
BURN_IN = 200
Z90 = 1.6448536269514722  # one-sided at 5 %


def looks(size: int) -> np.ndarray:
    """The sizes of the sample at the looks; the last one is before the whole population."""
    return np.arange(STEP, size, STEP)


def _expected(orders: np.ndarray, candidate: float) -> tuple[np.ndarray, np.ndarray]:
    """What is left for the values from each one on if the candidate is the mean: its sum, and the expectation of a value."""
    size = orders.shape[1]
    rest = size * candidate - (np.cumsum(orders, axis=1) - orders)
    return rest, rest / (size - np.arange(size))


def _at_looks(factors: np.ndarray) -> np.ndarray:
    """The running product of factors at each look."""
    count, size = factors.shape
    number = len(looks(size))
    blocks = factors[:, : number * STEP].reshape(count, number, STEP)
    return np.cumprod(np.multiply.reduce(blocks, axis=2), axis=1)


def bets(orders: np.ndarray, candidate: float, alpha: float) -> np.ndarray:
    """As `mill.metrics.sequential.Bets`."""
    rest, expected = _expected(orders, candidate)
    possible = rest > 1e-9 * orders.shape[1]
    gains = np.where(possible, orders / np.where(possible, expected, 1.0) - 1.0, 0.0)
    fixed = shares(orders.shape[1])
    with np.errstate(over="ignore"):
        capital = np.sum([_at_looks(1.0 + share * gains) for share in fixed], axis=0) / len(fixed)
    return np.asarray(capital >= 1 / alpha)


def share_evidence(orders: np.ndarray, candidate: int, alpha: float) -> np.ndarray:
    """`mill.metrics.sequential.ShareEvidence` itself: it depends on the number of ones alone and rises with it."""
    size = orders.shape[1]
    return np.cumsum(orders, axis=1)[:, looks(size) - 1] >= _fewest_ones(size, candidate, alpha)


@lru_cache
def _fewest_ones(size: int, candidate: int, alpha: float) -> np.ndarray:
    """The ones that a sample needs at each look: between those of the look before and as many more as there are values."""
    found, fewest = [], 1
    for n in map(int, looks(size)):
        low, high = fewest, min(fewest + STEP, n + 1)  # one more than there are values where none is enough
        while low < high:
            middle = (low + high) // 2
            evidence = ShareEvidence(size, candidate)
            evidence.add(middle, n - middle)
            low, high = (low, middle) if evidence.capital >= 1 / alpha else (middle + 1, high)
        fewest = high
        found.append(fewest)
    return np.array(found)


def hedged(orders: np.ndarray, candidate: float, alpha: float) -> np.ndarray:
    """One direction of the hedged capital, with predictable bets from the variance so far, cut off at half the largest."""
    rest, expected = _expected(orders, candidate)
    t = np.arange(1, orders.shape[1] + 1)
    means = (0.5 + np.cumsum(orders, axis=1)) / (t + 1)
    variances = (0.25 + np.cumsum((orders - means) ** 2, axis=1)) / (t + 1)
    before = np.concatenate((np.full((len(orders), 1), 0.25), variances[:, :-1]), axis=1)
    possible = rest > 1e-9 * orders.shape[1]
    most = 0.5 / np.where(possible, expected, 1.0)
    stakes = np.minimum(np.sqrt(2 * math.log(1 / alpha) / (t * np.log1p(t) * before)), most)
    with np.errstate(over="ignore"):
        return _at_looks(1.0 + np.where(possible, stakes * (orders - expected), 0.0)) >= 1 / alpha


def prior_posterior(orders: np.ndarray, candidate: int, alpha: float) -> np.ndarray:
    """The ratio of a beta-binomial prior, fitted to the first values, and its posterior, at the candidate and all below."""
    from scipy.special import betaln, gammaln  # type: ignore[import-untyped]

    def log_choose(n: np.ndarray, k: np.ndarray) -> np.ndarray:
        return gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)

    size, at = orders.shape[1], looks(orders.shape[1])
    sums = np.cumsum(orders, axis=1)
    first = sums[:, BURN_IN - 1 : BURN_IN]
    n, ones, left = at - BURN_IN, sums[:, at - 1] - first, candidate - first
    a, b = first + 0.5, BURN_IN - first + 0.5
    with np.errstate(invalid="ignore", divide="ignore"):
        evidence = betaln(a + ones, b + n - ones) - betaln(a, b)
        likelihood = log_choose(size - BURN_IN - n, left - ones) - log_choose(np.float64(size - BURN_IN), left)
        above = (ones * (size - BURN_IN + 1) > n * left) & (evidence - likelihood >= math.log(1 / alpha))
    return (n > 0) & (above | (left < ones))


def z_test(orders: np.ndarray, candidate: float, alpha: float) -> np.ndarray:
    """One-sided at 5 % at each look, with the finite-population correction."""
    assert alpha == 0.05
    size, at = orders.shape[1], looks(orders.shape[1])
    means = np.cumsum(orders, axis=1)[:, at - 1] / at
    squares = np.cumsum(orders**2, axis=1)[:, at - 1] / at
    errors = np.sqrt(np.maximum(squares - means**2, 1e-12) / (at - 1) * (1 - at / size))
    return (means - candidate > Z90 * errors) & (at >= 30)


def first_look(hits: np.ndarray, size: int, every: int) -> np.ndarray:
    """The sample size at which each order stops if it is tested after `every` values; the population if it never does."""
    chosen = hits[:, every // STEP - 1 :: every // STEP]
    at = looks(size)[every // STEP - 1 :: every // STEP]
    return np.where(chosen.any(axis=1), at[np.argmax(chosen, axis=1)], size)
