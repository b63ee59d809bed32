"""Aggregation of sample values into one estimate; a sample has one value for each repeat. Metrics over repeats, such as
pass@k, and calibration."""

from __future__ import annotations

import json
import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from mill.api.errors import SpecError
from mill.api.registry import register_metric
from mill.api.task import Opaque, Value
from mill.metrics.estimate import NOTHING, Estimate, around, exact_interval, mean_of, total
from mill.metrics.paired import bounded_mean, clustered_rate, exponential, inside

_FEWEST = 0.5  # of the questions of the most frequent letter; the accuracy of rarer letters is mostly noise


@register_metric("share")
def share(samples: Sequence[Sequence[float]]) -> Estimate:
    """The mean over samples of values between 0 and 1, such as the shares of several requests; the error is over samples.

    Where all values are 0 or 1 the interval is that of a proportion, as that of their mean would be.
    """
    values = [sum(repeats) / len(repeats) for repeats in samples]
    return mean([[value] for value in values]) if set(values) <= {0.0, 1.0} else bounded_mean(values)


@register_metric("position_spread", better="lower")
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


MIN_SAMPLES = 30  # for an interval, since the standard error is one for large samples


@register_metric("kappa", better="higher")
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


Repeats = Sequence[Value]


@register_metric("mean")
def mean(samples: Sequence[Repeats]) -> Estimate:
    """The mean over samples of the mean over repeats. The error is over samples: repeats of one sample are not independent.

    Values of 0 and 1 get the exact interval, others Student's.
    """
    numbers = [[_number(value) for value in repeats] for repeats in samples]
    values = [sum(repeats) / len(repeats) for repeats in numbers]
    estimate = mean_of(values)
    if estimate.stderr is None:  # too few values, or not all finite: no interval
        return estimate
    if all(value in (0.0, 1.0) for value in values):
        low, high = exact_interval(round(math.fsum(values)), len(values))
    elif all(value in (0.0, 1.0) for repeats in numbers for value in repeats):
        repeated = clustered_rate(numbers)
        low, high = min(repeated.low or 0.0, estimate.value), max(repeated.high or 1.0, estimate.value)
    else:  # equal values do not show the spread of others
        return estimate if estimate.stderr else replace(estimate, low=None, high=None)
    return Estimate(estimate.value, estimate.stderr, low, high, estimate.n)


@register_metric("count")
def count(samples: Sequence[Repeats]) -> Estimate:
    """The mean of counts: like `mean`, but values of 0 and 1 are no proportion."""
    estimate = mean_of([sum(map(_number, repeats)) / len(repeats) for repeats in samples])
    return estimate if estimate.stderr else replace(estimate, low=None, high=None)


@register_metric("perplexity", better="lower")
def perplexity(samples: Sequence[Repeats]) -> Estimate:
    """exp(-sum of log-likelihoods / sum of units), from (log-likelihood, units) pairs."""
    loss = _loss(samples)
    return exponential(loss) if loss.n else NOTHING


@register_metric("bits_per_unit", better="lower")
def bits_per_unit(samples: Sequence[Repeats]) -> Estimate:
    """-sum of log-likelihoods / sum of units / ln 2, from (log-likelihood, units) pairs."""
    loss = _loss(samples)
    stderr, low, high = (None if part is None else part / math.log(2) for part in (loss.stderr, loss.low, loss.high))
    return Estimate(loss.value / math.log(2), stderr, low, high, loss.n)


def _loss(samples: Sequence[Repeats]) -> Estimate:
    """Negative log-likelihood per unit as a ratio of sums, with its error by linearisation; documents are independent."""
    pairs = [_pair(repeats) for repeats in samples]
    n, units = len(pairs), total([unit for _, unit in pairs])
    if not n or not units:
        return NOTHING
    loss = 0.0 - total([score for score, _ in pairs]) / units
    if n < 2 or math.isinf(loss) or math.isinf(units):
        return around(loss, None, n)
    residuals = math.fsum((score + loss * unit) ** 2 for score, unit in pairs)
    # Documents of different lengths have a smaller effective sample size.
    effective = units**2 / math.fsum(unit**2 for _, unit in pairs)
    estimate = around(loss, math.sqrt(residuals * n / (n - 1)) / units, n, effective - 1)
    if (estimate.low or 0.0) < 0 and all(score <= 0 for score, _ in pairs):
        return replace(estimate, low=0.0)  # no log-probability is above 0; the true value is as often inside as before
    return estimate


def _pair(repeats: Repeats) -> tuple[float, float]:
    pairs = [value for value in repeats if isinstance(value, (tuple, list))]
    if len(pairs) < len(repeats):
        raise TypeError("a perplexity needs (log-likelihood, units) pairs, not plain numbers")
    scores, units = zip(*pairs, strict=True)
    return sum(scores) / len(scores), sum(units) / len(units)


def _number(value: Value) -> float:
    if not isinstance(value, (int, float)):
        raise TypeError("a mean needs plain numbers, not (log-likelihood, units) pairs")
    return float(value)


BINS = 15


@dataclass(frozen=True)
class CalibrationBin:
    """Answers whose probability is above `first` and at most `last`: how many, their mean probability, and the share that
    is right with its 95 % interval. The means are NaN where there is none."""

    first: float
    last: float
    n: int
    confidence: float
    accuracy: float
    low: float
    high: float


@dataclass(frozen=True)
class Calibration:
    """`ece` is the mean distance of accuracy and probability over the bins, weighted by their number of answers."""

    bins: tuple[CalibrationBin, ...]
    ece: float
    n: int


def choice_confidence(logprobs: Sequence[float | None]) -> float | None:
    """The probability of the best choice: the softmax of the choices' log-probabilities. None is a choice without any
    probability; without at least two choices, or where all are impossible, there is no answer."""
    known = [-math.inf if score is None else score for score in logprobs]
    best = max(known, default=-math.inf)
    if len(known) < 2 or not math.isfinite(best) or any(map(math.isnan, known)):
        return None
    return 1.0 / math.fsum(math.exp(score - best) for score in known)


def calibration(answers: Sequence[tuple[float, bool]], bins: int = BINS) -> Calibration:
    """Of answers as (probability, whether it is right), in bins of equal width; a bound belongs to the bin below it."""
    members: list[list[tuple[float, bool]]] = [[] for _ in range(bins)]
    for confidence, right in answers:
        members[min(bins - 1, max(0, math.ceil(confidence * bins) - 1))].append((confidence, right))
    filled = tuple(_bin(number / bins, (number + 1) / bins, found) for number, found in enumerate(members))
    n = len(answers)
    gaps = [one.n * abs(one.accuracy - one.confidence) for one in filled if one.n]
    return Calibration(filled, math.fsum(gaps) / n if n else math.nan, n)


def _bin(first: float, last: float, found: Sequence[tuple[float, bool]]) -> CalibrationBin:
    if not found:
        return CalibrationBin(first, last, 0, math.nan, math.nan, math.nan, math.nan)
    n, right = len(found), sum(right for _, right in found)
    confidence = math.fsum(one for one, _ in found) / n
    return CalibrationBin(first, last, n, confidence, right / n, *exact_interval(right, n))


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
