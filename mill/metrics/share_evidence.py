"""Evidence about the share of ones in a finite population of zeros and ones, drawn in random order without replacement.

The evidence against a number of ones in the population is the probability of the sample if the true share is above, divided
by its probability if it is this number. If it is, the ratio ever reaches 1 / alpha with a probability of at most alpha
(Ville's inequality; Waudby-Smith and Ramdas 2020 use it as the ratio of prior and posterior). "Above" is a beta distribution
that is centred at the candidate and cut off below it: unlike a prior of all shares, it needs no samples to be fitted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from mill.metrics.distributions import beta_cdf

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
