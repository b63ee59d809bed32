"""How far two raters agree beyond chance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from mill.api.registry import register_metric
from mill.api.task import Value
from mill.metrics.estimate import NOTHING, Estimate, around


@register_metric("kappa")
def kappa(samples: Sequence[Sequence[Value]]) -> Estimate:
    """Cohen's kappa from pairs of ratings, with its large-sample standard error. Not a number where both raters always give
    one and the same rating: then nothing can be told from chance."""
    pairs = [value for repeats in samples for value in repeats if isinstance(value, (tuple, list))]
    n = len(pairs)
    if not n:
        return NOTHING
    table = Counter(pairs)
    first, second = Counter(one for one, _ in pairs), Counter(other for _, other in pairs)
    ratings = sorted({*first, *second})
    agreed = sum(table[rating, rating] for rating in ratings) / n
    by_chance = sum(first[rating] * second[rating] for rating in ratings) / n**2
    if by_chance == 1:
        return around(math.nan, None, len(samples))
    value = (agreed - by_chance) / (1 - by_chance)
    diagonal = sum(
        table[rating, rating] / n * (1 - (first[rating] + second[rating]) / n * (1 - value)) ** 2 for rating in ratings
    )
    off = (1 - value) ** 2 * sum(
        table[one, other] / n * (second[one] / n + first[other] / n) ** 2
        for one in ratings
        for other in ratings
        if one != other
    )
    rest = (value - by_chance * (1 - value)) ** 2
    variance = max(0.0, diagonal + off - rest) / ((1 - by_chance) ** 2 * n)
    return around(value, math.sqrt(variance) if n > 1 else None, len(samples))
