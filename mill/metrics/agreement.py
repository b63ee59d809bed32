"""How far two raters agree beyond chance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from mill.api.registry import register_metric
from mill.api.task import Value
from mill.metrics.estimate import NOTHING, Estimate, around

FEWEST = 30  # samples, below which the large-sample error makes no interval


@register_metric("kappa")
def kappa(samples: Sequence[Sequence[Value]]) -> Estimate:
    """Cohen's kappa from pairs of ratings, with its large-sample standard error; repeats of a sample count as one.

    Not a number where both raters always give one and the same rating: then nothing can be told from chance.
    """
    rated = [[value for value in repeats if isinstance(value, (tuple, list))] for repeats in samples]
    pairs = [pair for repeats in rated for pair in repeats]
    n = len(pairs)
    if not n:
        return NOTHING
    first, second = Counter(one for one, _ in pairs), Counter(other for _, other in pairs)
    agreed = sum(one == other for one, other in pairs) / n
    by_chance = sum(first[rating] * second[rating] for rating in first) / n**2
    if by_chance == 1:
        return around(math.nan, None, len(samples))
    value = (agreed - by_chance) / (1 - by_chance)

    def influence(one: Any, other: Any) -> float:
        """How far a pair moves the value, as if there were infinitely many."""
        chance = (second[one] + first[other]) / n - 2 * by_chance
        return (float(one == other) - agreed - (1 - value) * chance) / (1 - by_chance)

    variance = sum(sum(influence(*pair) for pair in repeats) ** 2 for repeats in rated) / n**2
    stderr = math.sqrt(variance) if sum(map(bool, rated)) > 1 else None
    if len(samples) < FEWEST:
        return Estimate(value, stderr, None, None, len(samples))
    return around(value, stderr, len(samples))
