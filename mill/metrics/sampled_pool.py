"""The mean over several tasks of which random samples ran, from the estimate of each of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mill.metrics.estimate import NOTHING, Estimate, around
from mill.metrics.finite_population import UNIT, UNLIMITED, Moments, interval_of, padded


@dataclass(frozen=True)
class SampledPart:
    """A task's estimate of the mean over `size` items."""

    estimate: Estimate
    size: int

    @property
    def complete(self) -> bool:
        return self.estimate.n >= self.size

    @property
    def unit_variance(self) -> float:
        """The variance of the estimate if the items had a variance of 1."""
        return 0.0 if self.complete else 1 / self.estimate.n - 1 / self.size

    @property
    def spread(self) -> float:
        """The variance of the items, as the standard error shows it."""
        stderr, n = self.estimate.stderr or 0.0, self.estimate.n
        return stderr**2 * n if self.complete else stderr**2 / self.unit_variance

    @property
    def binary(self) -> bool:
        """Whether the items are zeros and ones, which shows in their variance."""
        value, n = self.estimate.value, self.estimate.n
        if not 0 <= value <= 1:
            return False
        return n < 2 or math.isclose(self.spread * (n - 1) / n, value * (1 - value), rel_tol=1e-6, abs_tol=1e-12)


def pool_samples(parts: Sequence[SampledPart], weights: Sequence[float]) -> Estimate:
    """The weighted mean of tasks that were sampled each by itself. Tasks without a value are left out."""
    chosen = [(part, weight) for part, weight in zip(parts, weights, strict=True) if part.estimate.n]
    if not chosen:
        return NOTHING
    whole = math.fsum(weight for _, weight in chosen)
    shares = [weight / whole for _, weight in chosen]
    known = [part for part, _ in chosen]
    n = sum(part.estimate.n for part in known)
    value = math.fsum(share * part.estimate.value for share, part in zip(shares, known, strict=True))
    if not math.isfinite(value) or any(part.estimate.stderr is None and not part.complete for part in known):
        return around(value, None, n)
    pairs = list(zip(shares, known, strict=True))
    variances = [0.0 if part.complete else (share * (part.estimate.stderr or 0.0)) ** 2 for share, part in pairs]
    below = math.fsum(one**2 / (part.estimate.n - 1) for one, part in zip(variances, known, strict=True) if one)
    variance = math.fsum(variances)
    df = variance**2 / below if below else max(1.0, n - len(known))
    unit = math.fsum(share**2 * part.unit_variance for share, part in pairs)
    size = sum(part.size for part in known)
    return _estimate(Moments(value, variance, df, n, size, unit), known)


def pool_random(parts: Sequence[SampledPart]) -> Estimate:
    """The mean of tasks from one simple random sample of all of their items, which may have none of some tasks."""
    known = [part for part in parts if part.estimate.n]
    n, size = sum(part.estimate.n for part in known), sum(part.size for part in parts)
    if not known:
        return NOTHING
    value = math.fsum(part.estimate.n * part.estimate.value for part in known) / n
    if not math.isfinite(value) or n < 2:
        return around(value, None, n)
    within = math.fsum((part.estimate.n - 1) * part.spread for part in known)
    between = math.fsum(part.estimate.n * (part.estimate.value - value) ** 2 for part in known)
    unit = max(0.0, 1 / n - 1 / size)
    return _estimate(Moments(value, unit * (within + between) / (n - 1), n - 1, n, size, unit), known)


def _estimate(moments: Moments, parts: Sequence[SampledPart]) -> Estimate:
    binary = all(part.binary for part in parts)
    inside = all(end is None or 0 <= end <= 1 for part in parts for end in (part.estimate.low, part.estimate.high))
    limits = UNIT if binary or inside else UNLIMITED
    low, high = interval_of(moments if binary else padded(moments, limits), limits, binary=binary)
    return Estimate(moments.value, math.sqrt(moments.variance), low, high, moments.n)
