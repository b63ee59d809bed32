"""Whether a model is right as often as its probabilities say: the bins of a reliability diagram and the expected calibration
error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mill.metrics.estimate import exact_interval

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
