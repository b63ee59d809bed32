"""Decisions about the mean of a whole test set from a random part of it, at any time and after any number of looks.

The guarantee is one of sampling alone: the samples must come in an order that is uniformly random and fixed before anything
is computed. A claim that is decided is wrong with a probability of at most alpha, no matter when and how often it is read.

Values between 0 and 1 are evidence by betting. A bettor stakes a share of the capital on the next value being above its
expectation, which the candidate mean and the values so far determine. If the mean is at most the candidate, no bet is
favourable, and the capital reaches 1 / alpha at any time with a probability of at most alpha (Ville's inequality;
Waudby-Smith and Ramdas 2023). The capital is the mean over bettors with different fixed shares of the largest bet that
cannot lose everything. It falls as the candidate rises, so a candidate that is refuted refutes all below it.

Zeros and ones have sharper evidence. That against a number of ones in the population is the probability of the sample if
the true share is above, divided by its probability if it is this number. If it is, the ratio ever reaches 1 / alpha with a
probability of at most alpha (Ville's inequality; Waudby-Smith and Ramdas 2020 use it as the ratio of prior and posterior).
"Above" is a beta distribution that is centred at the candidate and cut off below it: unlike a prior of all shares, it needs
no samples to be fitted.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import chain

from mill.api.errors import DataError
from mill.metrics.estimate import TAIL, beta_cdf

_STRENGTH = 1.7  # observations that the beta distribution is worth, for each square root of the population's size


class ShareEvidence:
    """Evidence that a population of `size` has more ones than `candidate`."""

    def __init__(self, size: int, candidate: int) -> None:
        self._size = size
        self._candidate = candidate
        self._ones = self._n = 0
        self._bounds: dict[float, float] = {}

    def update(self, values: Sequence[float]) -> None:
        ones = sum(value == 1.0 for value in values)
        self.add(ones, len(values) - ones)

    def add(self, ones: int, zeros: int) -> None:
        self._ones += ones
        self._n += ones + zeros

    @property
    def capital(self) -> float:
        """The factor by which the sample is more likely with more ones than with the best number up to the candidate."""
        evidence = self._log_evidence(self._candidate)
        return math.exp(evidence) if evidence < 700 else math.inf

    def lower_bound(self, threshold: float) -> float:
        """The smallest share that is not refuted at this evidence. With the same threshold it never falls."""
        if self._n:
            low, high = self._ones, max(self._ones, self._most_likely)
            while low < high:
                middle = (low + high) // 2
                low, high = (middle + 1, high) if self._log_evidence(middle) >= math.log(threshold) else (low, middle)
            self._bounds[threshold] = max(self._bounds.get(threshold, 0.0), low / self._size)
        return self._bounds.get(threshold, 0.0)

    @property
    def _most_likely(self) -> int:
        """The number of ones in the population that makes the sample most likely."""
        return min(self._ones * (self._size + 1) // self._n, self._size - (self._n - self._ones)) if self._n else 0

    def _log_evidence(self, count: int) -> float:
        """Against each number of ones up to `count`."""
        if count < self._ones:
            return math.inf
        if not self._n or not 0 < count < self._size:
            return 0.0 if count <= 0 else -math.inf
        ones, zeros, share = self._ones, self._n - self._ones, count / self._size
        strength = _STRENGTH * math.sqrt(self._size)
        a, b = strength * share, strength * (1 - share)
        above = beta_cdf(1 - share, b + zeros, a + ones)
        if above <= 0:
            return -math.inf
        evidence = _log_beta(a + ones, b + zeros) - _log_beta(a, b) + math.log(above / beta_cdf(1 - share, b, a))
        best = max(ones, min(count, self._most_likely))
        return evidence - _log_choose(self._size - self._n, best - ones) + _log_choose(self._size, best)


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


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


class Decider:
    """Whether the mean over a population is above or below a bound: `direction` is one of > >= < <=.

    `limits` are the smallest and largest possible value; with `binary`, values are 0 or 1. Both directions are tested at
    `alpha`, of which only one can be wrong.
    """

    def __init__(
        self,
        bound: float,
        direction: str,
        population: int,
        *,
        alpha: float = 0.05,
        limits: tuple[float, float] = (0.0, 1.0),
        binary: bool = False,
    ) -> None:
        self._bound, self._direction, self._size, self._alpha = bound, direction, population, alpha
        self._limits, self._binary = limits, binary
        self._blocks: list[tuple[float, ...]] = []
        self._sum, self._n = 0.0, 0
        self._decision: bool | None = None
        self._interval = limits
        self._above: Bets | ShareEvidence  # evidence against a mean on the lower side of the bound
        self._below: Bets | ShareEvidence  # against one on its upper side, from the values turned around
        if binary:
            count = self._largest_below()
            self._above, self._below = ShareEvidence(population, count), ShareEvidence(population, population - count - 1)
        else:
            self._above, self._below = Bets(population, self._scaled(bound)), Bets(population, 1 - self._scaled(bound))

    @property
    def n(self) -> int:
        return self._n

    @property
    def value(self) -> float:
        """The mean of the values so far."""
        return self._total() / self._n if self._n else math.nan

    @property
    def decision(self) -> bool | None:
        """Whether the claim is true of the whole population; None while that is open. A decision stays, unless it was one of
        the wrong ones and the values so far make that certain. With the last value it is exact."""
        return self._decision

    @property
    def interval(self) -> tuple[float, float]:
        """Contains the mean of the population at this and all other times with a probability of at least 95 %.

        At an alpha of 5 % there is a decision once the bound is outside of it; that may come earlier, since each direction
        is tested alone.
        """
        if self._n == self._size:
            return self.value, self.value
        low = self._unscaled(self._above.lower_bound(1 / TAIL))
        high = self._unscaled(1 - self._below.lower_bound(1 / TAIL))
        low, high = max(low, self._interval[0]), min(high, self._interval[1])
        if low <= high:  # otherwise this is one of the other 5 %
            self._interval = low, high
        return self._interval

    @property
    def one_sided(self) -> tuple[float, float]:
        """The mean is at least the first, and it is at most the second, each with a probability of at least 1 - alpha."""
        if self._n == self._size:
            return self.value, self.value
        low, high = (evidence.lower_bound(1 / self._alpha) for evidence in (self._above, self._below))
        return self._unscaled(low), self._unscaled(1 - high)

    def update(self, values: Sequence[float]) -> None:
        """The next values in the random order; the claim is tested once they are all there."""
        low, high = self._limits
        for value in values:
            if not low <= value <= high or (self._binary and value not in (0.0, 1.0)):
                allowed = "0 or 1" if self._binary else f"between {low:g} and {high:g}"
                raise DataError(f"a sequential test of values {allowed} got {value!r}")
        if self._n + len(values) > self._size:
            raise DataError(f"a sequential test of {self._size} samples got {self._n + len(values)} values")
        self._blocks.append(tuple(values))
        self._sum += math.fsum(values)
        self._n += len(values)
        scaled = [self._scaled(float(value)) for value in values]
        self._above.update(scaled)
        self._below.update([1 - value for value in scaled])
        certain = self._certain()
        if certain is not None:
            self._decision = certain
        elif self._decision is None:
            self._decision = self._tested()

    def _tested(self) -> bool | None:
        for evidence, above in ((self._above, True), (self._below, False)):
            if evidence.capital >= 1 / self._alpha:
                return above == self._is_upper
        return None

    def _certain(self) -> bool | None:
        """The decision that any values of the samples that are left would give."""
        total, left = self._total(), self._size - self._n
        ends = {self._holds((total + left * limit) / self._size) for limit in self._limits}
        return ends.pop() if len(ends) == 1 else None

    def _total(self) -> float:
        """The sum of all values so far; free of rounding errors once all are there."""
        return self._sum if self._n < self._size else math.fsum(chain.from_iterable(self._blocks))

    def _holds(self, mean: float) -> bool:
        return "=" in self._direction if mean == self._bound else (mean > self._bound) == self._is_upper

    @property
    def _is_upper(self) -> bool:
        return self._direction.startswith(">")

    def _largest_below(self) -> int:
        """The largest number of ones whose share is on the lower side of the bound; the share at the bound is on the side of
        the claim or on the other. -1 or the size where all shares are on one side."""
        return bisect_left(range(self._size + 1), True, key=lambda n: self._holds(n / self._size) == self._is_upper) - 1

    def _scaled(self, value: float) -> float:
        low, high = self._limits
        return (value - low) / (high - low)

    def _unscaled(self, value: float) -> float:
        low, high = self._limits
        return low + value * (high - low)
