"""By how much two scores differ, with interval and p-value: of the same samples, or of different ones. Which is better."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mill.api.registry import metrics
from mill.metrics.aggregate import bits_per_unit, perplexity
from mill.metrics.estimate import NOTHING, Estimate, around, is_proportion, mean_of
from mill.metrics.paired import Z95, mcnemar, p_of_zero, rate_difference

HIGHER, LOWER, UNKNOWN = 1, -1, 0

_HIGHER = {
    "acc", "acc_norm", "acc5", "acc_mutual_info", "acc_bytes", "accuracy", "relaxed_accuracy", "balanced_accuracy",
    "exact_match", "exact_match_flexible", "exact_match_first", "em", "exact", "contains", "quasi_exact_match",
    "pass", "maj", "avg", "best", "recall", "precision", "f1", "f1_macro", "mcc", "anls", "map", "mrr", "ndcg",
    "bleu", "sacrebleu", "chrf", "rouge", "rouge1", "rouge2", "rougel", "rougelsum", "meteor", "cider", "bertscore",
    "judge", "consistency", "includes", "score", "correct", "math_verify", "mc1", "mc2",
    "prompt_level_strict_acc", "prompt_level_loose_acc", "inst_level_strict_acc",
    "inst_level_loose_acc",
}  # fmt: skip
_LOWER = {
    "word_perplexity", "byte_perplexity", "token_perplexity", "ppl", "bits_per_byte",
    "bits_per_word", "bits_per_token", "loss", "nll", "ter", "wer", "cer", "brier_score", "ece", "mae", "mse", "rmse",
    "unreadable", "failed_calls",
}  # fmt: skip
_FILTER = re.compile(r",.*")  # a filter of lm-eval, or a metric over repeats: exact_match,pass@8
_COUNT = re.compile(r"@\d+$")


def direction(metric: str) -> int:
    """HIGHER where more is better, LOWER where less is: as the registered metric of this name says, or by the names that
    tasks and other packages use. UNKNOWN for every other name."""
    name = _COUNT.sub("", _FILTER.sub("", metric)).rpartition("/")[2].lower()
    better = getattr(metrics.get(name), "better", "") if name in metrics else ""
    return HIGHER if better == "higher" or name in _HIGHER else LOWER if better == "lower" or name in _LOWER else UNKNOWN


Units = tuple[float, float]
"""The log-likelihood of a document and its number of words, bytes or tokens."""

FAILED: Literal["failed"] = "failed"
Value = float | Units | Literal["failed"] | None
"""What a sample counts with in a comparison: its mean over repeats, a failure, or nothing, as without a gold answer."""


def valued_pairs(
    pairs: Sequence[tuple[Value, Value]], failure: float | Units | None = None, *, better: int = HIGHER
) -> list[tuple[float, float] | tuple[Units, Units]]:
    """The pairs of a task that both runs have a value of. A failure counts as `value_of_failures` says of all its pairs."""
    worst = value_of_failures(pairs, better) if failure is None else failure
    known = [pair for pair in pairs if None not in pair]
    return [tuple(worst if value == FAILED else value for value in pair) for pair in known] if worst is not None else []  # type: ignore[misc]


def value_of_failures(pairs: Sequence[tuple[Value, Value]], better: int = HIGHER) -> float | Units | None:
    """A failed sample counts as the worse end of a scale from 0 to 1, as a wrong answer does; on other scales its value is
    unknown, so NaN. None where one of the sides has no value at all: then nothing can be compared."""
    sides = zip(*(pair for pair in pairs if None not in pair), strict=True)
    known = [[value for value in side if value != FAILED] for side in sides]
    if not known or not all(known):
        return None
    values = [*known[0], *known[1]]
    if isinstance(values[0], tuple):
        return math.nan, 1.0
    bounded = all(isinstance(value, float) and 0 <= value <= 1 for value in values)
    return math.nan if not bounded else 1.0 if better == LOWER else 0.0


@dataclass(frozen=True)
class Difference:
    """A difference with the two-sided p-value of no difference; that is NaN where nothing can be tested."""

    estimate: Estimate
    p: float


NO_DIFFERENCE = Difference(NOTHING, math.nan)


def paired_loss(pairs: Sequence[tuple[float, float]]) -> Difference:
    """The mean of first minus second values of the same samples: McNemar's test and Tango's interval where all values are 0
    or 1, else Student's."""
    if not pairs:
        return NO_DIFFERENCE
    values = [value for pair in pairs for value in pair]
    if all(value in (0.0, 1.0) for value in values):
        worse, better = pairs.count((1.0, 0.0)), pairs.count((0.0, 1.0))
        return Difference(rate_difference(worse, better, len(pairs)), mcnemar(worse, better))
    scale = 1.0 if all(0 <= value <= 1 for value in values) else max(values) - min(values)
    return _mean_difference([first - second for first, second in pairs], scale)


def _mean_difference(values: Sequence[float], scale: float) -> Difference:
    """The mean of differences between -scale and scale. Test and interval are Student's of the values and one more at either
    end, as far from 0 as the values are spread or reach, or as the scale does where they are all equal: neither collapses
    where few samples differ. With a scale of 0, which is unknown, there is no interval."""
    estimate = mean_of(values)
    if not math.isfinite(estimate.value) or not math.isfinite(scale):
        return Difference(estimate, p_of_zero(estimate, 0))
    if not scale:
        return Difference(replace(estimate, low=None, high=None), 1.0)
    spread = max(values) - min(values)
    end = min(scale, max(spread, *map(abs, values))) if spread else scale
    padded = mean_of([*values, -end, end])
    assert padded.low is not None and padded.high is not None
    low, high = min(padded.low, estimate.value), max(padded.high, estimate.value)
    return Difference(replace(estimate, low=max(-scale, low), high=min(scale, high)), p_of_zero(padded, len(values) + 1))


def negated(difference: Difference) -> Difference:
    """The same of second minus first."""
    one = difference.estimate
    low, high = (None if bound is None else -bound for bound in (one.high, one.low))
    return replace(difference, estimate=Estimate(0.0 - one.value, one.stderr, low, high, one.n))


def perplexity_difference(pairs: Sequence[tuple[Units, Units]], of: Callable[..., Estimate]) -> Difference:
    """Second minus first perplexity (or bits per unit, as `of` decides) of the same documents. Both are functions of a ratio
    of sums, linearised: what a document adds to one is subtracted from what it adds to the other."""
    n, sides = len(pairs), [list(side) for side in zip(*pairs, strict=True)]
    if n < 2:
        return NO_DIFFERENCE
    values = [of([[document] for document in side]).value for side in sides]
    rates = [_rate(side) for side in sides]
    if not all(map(math.isfinite, [*values, *rates])):
        return Difference(around(values[1] - values[0], None, n), math.nan)
    influences = [_influences(side, value, of) for side, value in zip(sides, values, strict=True)]
    spread = math.hypot(*(second - first for first, second in zip(*influences, strict=True)))
    units = [unit for _, unit in sides[0]]
    effective = math.fsum(units) ** 2 / math.fsum(unit**2 for unit in units)
    estimate = around(values[1] - values[0], spread / math.sqrt((n - 1) * n), n, max(1.0, effective - 1))
    return Difference(estimate, p_of_zero(estimate, max(1.0, effective - 1)))


def _rate(documents: Sequence[Units]) -> float:
    units = math.fsum(unit for _, unit in documents)
    return math.fsum(score for score, _ in documents) / units if units else math.nan


def _influences(documents: Sequence[Units], value: float, of: Callable[..., Estimate]) -> list[float]:
    """By how much each document moves the value, as the derivative by its weight."""
    slope = {perplexity: -value, bits_per_unit: -1 / math.log(2)}[of]
    rate, mean_units = _rate(documents), math.fsum(unit for _, unit in documents) / len(documents)
    return [slope * (score - rate * unit) / mean_units for score, unit in documents]


def unpaired_difference(first: Estimate, second: Estimate) -> Difference:
    """Second minus first estimate of different samples, by the z-test; of two proportions with their pooled variance, so
    that 0 of 2 and 2 of 2 are not certain to differ. The interval combines those of the two estimates."""
    value, n = second.value - first.value, min(first.n, second.n)
    if not math.isfinite(value) or first.stderr is None or second.stderr is None:
        return Difference(Estimate(value, None, None, None, n), math.nan)
    stderr = math.hypot(first.stderr, second.stderr)
    tested = stderr
    if is_proportion(first) and is_proportion(second):
        share = (first.value * first.n + second.value * second.n) / (first.n + second.n)
        tested = math.sqrt(share * (1 - share) * (1 / first.n + 1 / second.n))
    p = math.erfc(abs(value / tested) / math.sqrt(2)) if tested else 1.0 if not value else math.nan
    return Difference(_combined([(-1.0, first), (1.0, second)], value, stderr, n), p)


def pooled_difference(parts: Sequence[tuple[float, Difference]]) -> Difference:
    """The weighted sum of differences in independent tasks, such as those of a benchmark."""
    estimates = [(weight, part.estimate) for weight, part in parts]
    n = sum(one.n for _, one in estimates)
    value = math.fsum(weight * one.value for weight, one in estimates)
    if not parts or any(one.stderr is None for _, one in estimates):
        return Difference(Estimate(value, None, None, None, n), math.nan)
    stderr = math.hypot(*(weight * (one.stderr or 0.0) for weight, one in estimates))
    estimate = _combined(estimates, value, stderr, n)
    return Difference(estimate, p_of_zero(estimate, max(1, n - len(parts))))


def _combined(parts: Sequence[tuple[float, Estimate]], value: float, stderr: float, n: int) -> Estimate:
    """A weighted sum whose interval reaches below and above its value by the square root of the sum of squares of how far
    those of its summands do (Zou and Donner 2008). So it does not collapse where all samples have equal values."""
    below, above = [], []
    for weight, one in parts:
        half = None if one.stderr is None else Z95 * one.stderr
        down = half if one.low is None else one.value - one.low
        up = half if one.high is None else one.high - one.value
        if down is None or up is None:
            return Estimate(value, stderr, None, None, n)
        down, up = (down, up) if weight >= 0 else (up, down)
        below.append(weight * down)
        above.append(weight * up)
    return Estimate(value, stderr, value - math.hypot(*below), value + math.hypot(*above), n)
