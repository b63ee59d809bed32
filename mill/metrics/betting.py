"""Evidence about the mean of a finite population of values between 0 and 1, drawn in random order without replacement.

A bettor stakes a share of the capital on the next value being above its expectation, which the candidate mean and the values
so far determine. If the mean is at most the candidate, no bet is favourable, and the capital reaches 1 / alpha at any time
with a probability of at most alpha (Ville's inequality; Waudby-Smith and Ramdas 2023). The capital is the mean over bettors
with different fixed shares of the largest bet that cannot lose everything. It falls as the candidate rises, so a candidate
that is refuted refutes all below it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

# The middles of ten equally likely parts of the standard normal distribution.
_NORMAL = (-1.645, -1.036, -0.674, -0.385, -0.126, 0.126, 0.385, 0.674, 1.036, 1.645)
_SPREAD = 0.8  # of the logarithms of shares
_ROUNDING = 1e-9  # relative to the sum of the population
_PRECISION = 1e-5  # of a bound of the mean


def shares(size: int) -> tuple[float, ...]:
    """The bets, as shares of the largest one. A small population can only show large differences, which need large bets; the
    constants are those that decided soonest in simulations of differences between models (300 to 100,000 samples)."""
    middle = min(max(12 / math.sqrt(size), 0.05), 0.3)
    return tuple(min(0.95, middle * math.exp(_SPREAD * normal)) for normal in _NORMAL)


class Bets:
    """The capital of bets against a mean of at most `candidate`."""

    def __init__(self, size: int, candidate: float) -> None:
        self._size = size
        self._candidate = candidate
        self._shares = shares(size)
        self._capitals = [1.0] * len(self._shares)
        self._values: list[float] = []
        self._sum = 0.0
        self._bounds: dict[float, float] = {}

    def update(self, values: Iterable[float]) -> None:
        for value in values:
            rest, left = self._size * self._candidate - self._sum, self._size - len(self._values)
            if rest > self._size * _ROUNDING:  # otherwise the candidate is impossible, or all values that are left are 0
                gain = value * left / rest - 1.0
                self._capitals = [
                    capital * (1.0 + share * gain) for capital, share in zip(self._capitals, self._shares, strict=True)
                ]
            self._sum += value
            self._values.append(value)

    @property
    def capital(self) -> float:
        return math.fsum(self._capitals) / len(self._capitals)

    def lower_bound(self, threshold: float) -> float:
        """A mean that is refuted, with all below it, at this capital. With the same threshold it never falls."""
        if not self._values:
            return 0.0
        import numpy as np

        values, n = np.asarray(self._values), len(self._values)
        before = np.concatenate(([0.0], np.cumsum(values)[:-1]))
        stakes = values * (self._size - np.arange(n))

        def refuted(candidate: float) -> bool:
            rest = self._size * candidate - before
            possible = rest > self._size * _ROUNDING
            gains = np.where(possible, stakes / np.where(possible, rest, 1.0) - 1.0, 0.0)
            logs = [float(np.log1p(share * gains).sum()) for share in self._shares]
            top = max(logs)
            return top + math.log(math.fsum(math.exp(one - top) for one in logs) / len(logs)) >= math.log(threshold)

        low, high = max(self._bounds.get(threshold, 0.0), self._sum / self._size), self._sum / n
        while high - low > _PRECISION:
            middle = (low + high) / 2
            low, high = (middle, high) if refuted(middle) else (low, middle)
        self._bounds[threshold] = low
        return low
