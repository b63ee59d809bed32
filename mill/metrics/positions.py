"""How much the position of the right choice matters, where each question is sent with its choices in several orders."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

from mill.api.registry import register_metric
from mill.api.task import Opaque
from mill.metrics.aggregate import mean
from mill.metrics.estimate import NOTHING, Estimate, around
from mill.metrics.paired import bounded_mean, inside

_FEWEST = 0.5  # of the questions of the most frequent letter; the accuracy of rarer letters is mostly noise


@register_metric("share")
def share(samples: Sequence[Sequence[float]]) -> Estimate:
    """The mean over samples of values between 0 and 1, such as the shares of several requests; the error is over samples.

    Where all values are 0 or 1 the interval is that of a proportion, as that of their mean would be.
    """
    values = [sum(repeats) / len(repeats) for repeats in samples]
    return mean([[value] for value in values]) if set(values) <= {0.0, 1.0} else bounded_mean(values)


@register_metric("position_spread")
def position_spread(samples: Sequence[Sequence[Opaque]]) -> Estimate:
    """The largest minus the smallest accuracy by the letter of the right choice, of samples that have the share of right
    answers by letter.

    The error is that of the difference between these two letters, over questions. The spread of few questions is above 0
    by chance alone: letters that at least half of the questions have count.
    """
    questions = [_by_letter(repeats) for repeats in samples]
    shares: dict[str, list[float]] = defaultdict(list)
    for question in questions:
        for letter, right in question.items():
            shares[letter].append(right)
    most = max(map(len, shares.values()), default=0)
    means = {letter: math.fsum(found) / len(found) for letter, found in shares.items() if len(found) >= _FEWEST * most}
    if len(means) < 2:
        return NOTHING
    best, worst = max(means, key=means.__getitem__), min(means, key=means.__getitem__)
    value, n = means[best] - means[worst], len(questions)
    if n < 2:
        return around(value, None, n)

    def deviation(question: Mapping[str, float], letter: str) -> float:
        return (question[letter] - means[letter]) / len(shares[letter]) if letter in question else 0.0

    squares = ((deviation(question, best) - deviation(question, worst)) ** 2 for question in questions)
    return inside(around(value, math.sqrt(math.fsum(squares) * n / (n - 1)), n))


def _by_letter(repeats: Sequence[Opaque]) -> dict[str, float]:
    """The mean over the repeats of a question."""
    found: dict[str, list[float]] = defaultdict(list)
    for repeat in repeats:
        for letter, right in repeat.value.items():
            found[letter].append(right)
    return {letter: sum(rights) / len(rights) for letter, rights in found.items()}
