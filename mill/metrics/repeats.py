"""Metrics over several answers to one question: pass@k, avg@k, maj@k and best@k.

Each gives one value for a question; the mean over questions has its standard error over questions, so that answers to the
same question count as one cluster.
"""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from mill.api.errors import SpecError

PASS, AVG, MAJ, BEST = "pass", "avg", "maj", "best"
KINDS = (PASS, AVG, MAJ, BEST)
MOST_SUBSETS = 1000  # of the answers; where there are more, so many are drawn
_NAME = re.compile(rf"({'|'.join(KINDS)})@(\d{{1,6}})")


@dataclass(frozen=True)
class RepeatMetric:
    """A metric such as pass@5: `k` of the answers to a question."""

    kind: str
    k: int

    def __str__(self) -> str:
        return f"{self.kind}@{self.k}"

    def name(self, metric: str) -> str:
        """Its name beside that of the metric whose values it takes; pass@1 is that of benchmarks of programs."""
        return str(self) if metric == f"{PASS}@1" else f"{metric},{self}"


def read_repeat_metrics(
    names: Sequence[str] | None, repeats: int, *, judged: bool = True
) -> tuple[RepeatMetric, ...] | None:
    """`pass@5` and so on, for so many answers to each question; refused where there are not enough of them, or where best@k
    has no judge. None stays."""
    if names is None:
        return None
    found = []
    for name in names:
        match = _NAME.fullmatch(str(name).strip())
        if match is None or int(match.group(2)) < 1:
            raise SpecError(f"repeat_metrics: {str(name)[:60]!r} is none of {', '.join(f'{kind}@K' for kind in KINDS)}")
        metric = RepeatMetric(match.group(1), int(match.group(2)))
        if metric.k > repeats:
            raise SpecError(f"repeat_metrics: {metric} needs --repeats {metric.k}, and it is {repeats}")
        if metric.kind == BEST and not judged:
            raise SpecError(f"repeat_metrics: {metric} needs --judge, whose ratings choose the answer")
        found.append(metric)
    return tuple(dict.fromkeys(found))


def default_metrics(repeats: int) -> tuple[RepeatMetric, ...]:
    """What is reported where the user names nothing: pass@k and maj@k of all answers."""
    return (RepeatMetric(PASS, repeats), RepeatMetric(MAJ, repeats)) if repeats > 1 else ()


def pass_at(right: int, count: int, k: int) -> float:
    """The probability that at least one of k answers, drawn without replacement from `count`, is right (unbiased)."""
    return 1.0 - math.comb(count - right, k) / math.comb(count, k)


def value_of(
    metric: RepeatMetric,
    values: Sequence[float],
    *,
    answers: Sequence[Any] = (),
    ratings: Sequence[float | None] = (),
    seed: str = "",
) -> float | None:
    """The metric of one question, from the values of its answers.

    `answers` are those extracted from the texts, for maj@k, with None for one that cannot be read; `ratings` those of a
    judge, for best@k. Ties are decided by the seed. None where the question has nothing to compute it from.
    """
    if len(values) < metric.k:
        return None
    if metric.kind == AVG:
        return sum(values[: metric.k]) / metric.k
    if metric.kind == PASS:
        if any(value not in (0.0, 1.0) for value in values):
            return None
        return pass_at(round(sum(values)), len(values), metric.k)
    if metric.kind == MAJ:
        return _majority(values, answers, metric.k, seed) if answers else None
    return _best(values, ratings, metric.k, seed) if any(rating is not None for rating in ratings) else None


def _majority(values: Sequence[float], answers: Sequence[Any], k: int, seed: str) -> float:
    """The value of the most frequent answer, averaged over the subsets of k answers. Unreadable ones have no vote; where no
    answer of a subset can be read, it is wrong."""
    named = [one if one is None or isinstance(one, str) else json.dumps(one, sort_keys=True, default=str) for one in answers]
    value_by_answer = dict(zip(named, values, strict=True))
    dice = random.Random(seed)
    found = []
    for subset in _subsets(len(values), k, dice):
        votes = Counter(named[index] for index in subset if named[index] is not None)
        top = max(votes.values(), default=0)
        tied = sorted(str(answer) for answer, count in votes.items() if count == top)
        found.append(value_by_answer[dice.choice(tied)] if tied else 0.0)
    return math.fsum(found) / len(found)


def _best(values: Sequence[float], ratings: Sequence[float | None], k: int, seed: str) -> float:
    """The value of the answer that the judge rates highest, averaged over the subsets of k answers. An answer without a
    rating is taken only where no other has one."""
    dice = random.Random(seed)
    found = []
    for subset in _subsets(len(values), k, dice):
        rated = [-math.inf if (rating := ratings[index]) is None else rating for index in subset]
        found.append(values[dice.choice([index for index, rate in zip(subset, rated, strict=True) if rate == max(rated)])])
    return math.fsum(found) / len(found)


def _subsets(count: int, k: int, dice: random.Random) -> Iterator[tuple[int, ...]]:
    """All subsets of k indices, or a fixed number of drawn ones where there are more."""
    if math.comb(count, k) <= MOST_SUBSETS:
        return combinations(range(count), k)
    return (tuple(dice.sample(range(count), k)) for _ in range(MOST_SUBSETS))
