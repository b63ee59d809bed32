"""Decisions about the mean of a whole test set from a random part of it, at any time and after any number of looks.

The guarantee is one of sampling alone: the samples must come in an order that is uniformly random and fixed before anything
is computed. A claim that is decided is wrong with a probability of at most alpha, no matter when and how often it is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

from mill.api.errors import DataError, SpecError
from mill.metrics.betting import Bets
from mill.metrics.estimate import TAIL
from mill.metrics.share_evidence import ShareEvidence

DIRECTIONS = (">", ">=", "<", "<=")


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
        _check(bound, direction, population, alpha, limits, binary)
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
        low, high = -1, self._size
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._holds(middle / self._size) != self._is_upper else (low, middle - 1)
        return low

    def _scaled(self, value: float) -> float:
        low, high = self._limits
        return (value - low) / (high - low)

    def _unscaled(self, value: float) -> float:
        low, high = self._limits
        return low + value * (high - low)


def _check(bound: float, direction: str, population: int, alpha: float, limits: tuple[float, float], binary: bool) -> None:
    if direction not in DIRECTIONS:
        raise SpecError(f"a sequential test needs a direction, one of {' '.join(DIRECTIONS)}, not {direction!r}")
    if population < 1:
        raise SpecError(f"a sequential test needs a population of at least one sample, not {population}")
    if not 0 < alpha < 1:
        raise SpecError(f"a sequential test needs an alpha between 0 and 1, not {alpha:g}")
    if not (math.isfinite(limits[0]) and math.isfinite(limits[1]) and limits[0] < limits[1]):
        raise SpecError(f"a sequential test needs finite limits of a value, not {limits[0]:g} and {limits[1]:g}")
    if binary and limits != (0.0, 1.0):
        raise SpecError(f"zeros and ones have the limits 0 and 1, not {limits[0]:g} and {limits[1]:g}")
    if math.isnan(bound):
        raise SpecError("a sequential test needs a number as its bound, not NaN")
