"""Agreement of two raters beyond chance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from mill.api.registry import register_metric
from mill.api.task import Value
from mill.metrics.estimate import NOTHING, Estimate, around

MIN_SAMPLES = 30  # for an interval, since the standard error is one for large samples


@register_metric("kappa")
def kappa(samples: Sequence[Sequence[Value]]) -> Estimate:
    """Cohen's kappa from pairs of ratings, with its large-sample standard error; repeats of a sample count as one.

    NaN where both raters always give the same rating: then agreement cannot be distinguished from chance.
    """
    rated = [[value for value in repeats if isinstance(value, (tuple, list))] for repeats in samples]
    pairs = [pair for repeats in rated for pair in repeats]
    n = len(pairs)
    if not n:
        return NOTHING
    first, second = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    agreed = sum(a == b for a, b in pairs) / n
    by_chance = sum(first[rating] * second[rating] for rating in first) / n**2
    if by_chance == 1:
        return around(math.nan, None, len(samples))
    value = (agreed - by_chance) / (1 - by_chance)

    def influence(a: Any, b: Any) -> float:
        """The influence function of one pair on kappa."""
        chance = (second[a] + first[b]) / n - 2 * by_chance
        return (float(a == b) - agreed - (1 - value) * chance) / (1 - by_chance)

    variance = sum(sum(influence(*pair) for pair in repeats) ** 2 for repeats in rated) / n**2
    stderr = math.sqrt(variance) if sum(map(bool, rated)) > 1 else None
    if len(samples) < MIN_SAMPLES:
        return Estimate(value, stderr, None, None, len(samples))
    return around(value, stderr, len(samples))
