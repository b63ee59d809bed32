"""Measurements of two runs over the same samples, each with its interval.

Every metric is defined for every input: NaN and infinity propagate into it. What cannot be measured is left out as a whole
metric, never by leaving samples out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from mill.checks.answers import DOCUMENT, TEXT
from mill.checks.pairing import AnswerPair, score_shift
from mill.checks.result import Variant
from mill.metrics.differences import FAILED, LOWER, UNKNOWN, direction, paired_loss, valued_pairs
from mill.metrics.divergence import Gap, similarity
from mill.metrics.estimate import Estimate, around, mean_of
from mill.metrics.paired import (
    bounded_mean,
    clustered_mean,
    clustered_percentiles,
    clustered_rate,
    exponential,
    inside,
    largest,
    p_of_zero,
    positive_mean,
    rate,
)

NEAR_TIE = 0.1  # nats: below this margin rounding alone may swap the two best tokens
KL_SHARES = {"kl_median": 0.5, "kl_p90": 0.9, "kl_p95": 0.95, "kl_p99": 0.99}
FORCED = ("kl_mean", *KL_SHARES, "kl_max", "delta_p_rms", "top1_agreement", "ppl_ratio", "nonfinite_rate")
MAX_POSITIONS = 64  # of a text, in the chart of agreement by position


def measure_answers(variant: Variant, pairs: Sequence[AnswerPair]) -> Variant:
    """Add metrics of answers that each engine generated itself. Every sample counts: a failed one as changed and wrong."""
    variant.counts |= {
        "samples": len(_by_sample(pairs)),
        "failed": len(_by_sample(pair for pair in pairs if pair.failed)),
        "candidate_failed": len(_by_sample(pair for pair in pairs if pair.b.error is not None)),
    }
    variant.counts |= {f"severity_{tier}": count for tier, count in Counter(pair.severity for pair in pairs).items()}
    variant.metrics["failure_rate"] = rate(variant.counts["failed"], variant.counts["samples"])
    _measure_texts(variant, pairs)
    _measure_reasoning(variant, pairs)
    flips = [pair for pair in pairs if pair.flipped is not None]
    variant.counts["unextracted"] = sum(pair.unextracted for pair in pairs)
    if flips:
        flipped = [pair for pair in flips if pair.flipped]
        variant.counts |= {"flips": len(flipped), "flips_cut_short": sum(_cut_short(pair) for pair in flipped)}
        variant.metrics["flip_rate"] = _share(flips, lambda pair: bool(pair.flipped))
    _measure_correctness(variant, pairs)
    _measure_divergences(variant, pairs)
    _measure_scores(variant, pairs)
    return variant


def _by_sample(pairs: Iterable[AnswerPair]) -> list[list[AnswerPair]]:
    """The repeats of each sample, which are not independent."""
    found: dict[tuple[str, str], list[AnswerPair]] = {}
    for pair in pairs:
        found.setdefault((pair.a.task, pair.a.id), []).append(pair)
    return list(found.values())


def _share(pairs: Sequence[AnswerPair], hit: Callable[[AnswerPair], bool]) -> Estimate:
    """The share of answers for which something holds, with the exact interval; with repeats, that over samples."""
    groups = [[float(hit(pair)) for pair in repeats] for repeats in _by_sample(pairs)]
    single = all(len(group) == 1 for group in groups)
    return rate(round(sum(group[0] for group in groups)), len(groups)) if single else clustered_rate(groups)


def _sample_means(pairs: Iterable[AnswerPair], value: Callable[[AnswerPair], float | None]) -> list[float]:
    """The mean over the repeats of each sample that have a value."""
    known = [[one for pair in repeats if (one := value(pair)) is not None] for repeats in _by_sample(pairs)]
    return [mean_of(values).value for values in known if values]


def _measure_texts(variant: Variant, pairs: Sequence[AnswerPair]) -> None:
    """Metrics of generated texts: empty, truncated and filtered ones, and how similar they are."""
    generated = [pair for pair in pairs if pair.a.form == TEXT]
    if not generated:
        return
    faults: dict[str, Callable[[AnswerPair], bool]] = {
        "empty": lambda pair: pair.a.empty or pair.b.empty,
        "cut_short": _cut_short,
        "filtered": lambda pair: pair.a.filtered or pair.b.filtered,
    }
    variant.counts |= {name: sum(map(hit, generated)) for name, hit in faults.items()}
    variant.counts["both_empty"] = sum(pair.both_empty for pair in generated)
    variant.counts["baseline_empty"] = sum(pair.a.empty for pair in generated)
    for name, hit in zip(("empty_rate", "cut_rate", "filtered_rate"), faults.values(), strict=True):
        variant.metrics[name] = _share(generated, hit)
    compared = [pair for pair in generated if pair.texts]
    if compared:
        variant.metrics["match_rate"] = _share(compared, lambda pair: pair.identical)
        variant.metrics["similarity"] = bounded_mean(_sample_means(compared, lambda pair: pair.similarity))


def _measure_reasoning(variant: Variant, pairs: Sequence[AnswerPair]) -> None:
    """How alike the reasoning before the answers is, of samples where an engine reasoned."""
    reasoned = [pair for pair in pairs if not pair.failed and not (pair.a.reasoning is None is pair.b.reasoning)]
    if not reasoned:
        return
    alike = _sample_means(reasoned, lambda pair: similarity(pair.a.reasoning or "", pair.b.reasoning or ""))
    same = _share(reasoned, lambda pair: (pair.a.reasoning or "") == (pair.b.reasoning or ""))
    variant.metrics |= {"reasoning_match_rate": same, "reasoning_similarity": bounded_mean(alike)}
    variant.counts["reasoned"] = len(reasoned)


def _cut_short(pair: AnswerPair) -> bool:
    return pair.a.cut_short or pair.b.cut_short


Scored = tuple[float, float, int]
"""The values of the baseline and of the candidate, and which direction is better."""


def _measure_correctness(variant: Variant, pairs: Sequence[AnswerPair]) -> None:
    """Accuracy where the values of a task's repeats are all 0 or 1, the mean score where they are graded, on both sides. The
    loss is inconclusive where one side has no value of a task at all. Tasks whose better direction is unknown have none."""
    by_task: dict[str, list[AnswerPair]] = {}
    for repeats in _by_sample(pairs):
        by_task.setdefault(repeats[0].a.task, []).append(repeats[0])
    scored: dict[str, list[Scored]] = {}
    for task, members in by_task.items():
        metric = next((one.metric for pair in members for one in (pair.a, pair.b) if one.metric), "")
        better, values = direction(metric), [pair.values for pair in members]
        graded = better == LOWER or any(pair.a.graded or pair.b.graded for pair in members)
        valued = [(a, b) for a, b in valued_pairs(values, better=better) if isinstance(a, float) and isinstance(b, float)]
        loss = "score_drop" if graded else "acc_drop"
        scored.setdefault(loss, []).extend((a, b, better) for a, b in valued)
        if metric and not valued and any(FAILED in pair for pair in values):
            variant.inconclusive[loss] = f"all samples of {task} failed on one side"
        elif valued and better == UNKNOWN:
            variant.partial[loss] = f"whether a higher {metric} of {task} is better is not known"
    for loss, found in scored.items():
        known = [one for one in found if one[2] != UNKNOWN]
        if loss in variant.partial and not known:
            variant.inconclusive.setdefault(loss, variant.partial.pop(loss))
            variant.metrics |= _mean_scores(found)
        elif known and loss not in variant.inconclusive:
            measure = _measure_accuracy if loss == "acc_drop" else _measure_grades
            measure(variant, known)


def _measure_accuracy(variant: Variant, scored: Sequence[Scored]) -> None:
    pairs = [(a, b) for a, b, _ in scored]
    n, worse, better = len(pairs), sum(b < a for a, b in pairs), sum(b > a for a, b in pairs)
    loss = paired_loss(pairs)
    variant.metrics |= {
        "acc_baseline": _accuracy_of([a for a, _ in pairs]),
        "acc": _accuracy_of([b for _, b in pairs]),
        "acc_drop": loss.estimate,
        "regression_rate": rate(worse, n),
        "improvement_rate": rate(better, n),
    }
    variant.p_values["acc_drop"] = loss.p
    variant.counts |= {"regressions": worse, "improvements": better}


def _accuracy_of(values: Sequence[float]) -> Estimate:
    """Of samples that are right or wrong; of their means over repeats, where there are several."""
    return rate(round(sum(values)), len(values)) if {*values} <= {0.0, 1.0} else bounded_mean(values)


def _measure_grades(variant: Variant, scored: Sequence[Scored]) -> None:
    good_first = [(b, a) if better == LOWER else (a, b) for a, b, better in scored]
    loss = paired_loss(good_first)
    variant.metrics |= {**_mean_scores(scored), "score_drop": loss.estimate}
    variant.p_values["score_drop"] = loss.p
    variant.counts |= {"graded": len(scored), "score_regressions": sum(second < first for first, second in good_first)}


def _mean_scores(scored: Sequence[Scored]) -> dict[str, Estimate]:
    return {"score_baseline": mean_of([a for a, _, _ in scored]), "score": mean_of([b for _, b, _ in scored])}


def _measure_divergences(variant: Variant, pairs: Sequence[AnswerPair]) -> None:
    """How many texts diverge, where, and how many of them not at a near-tie. An unknown margin is no near-tie."""
    texts = [pair for pair in pairs if pair.texts]
    if not texts:
        return
    diverged = [pair for pair in texts if pair.divergence is not None]
    variant.counts["diverged"] = len(diverged)
    numbers = _sample_means(diverged, lambda pair: pair.divergence.token if pair.divergence else None)
    if numbers:
        variant.metrics["first_divergence"] = inside(mean_of(numbers), 1.0, math.inf)
    margins = _sample_means(diverged, _margin)
    if margins:
        variant.counts |= {"near_ties": sum(map(_near_tie, texts)), "clear_divergences": sum(map(_clear_divergence, texts))}
        variant.metrics["divergence_margin"] = inside(mean_of(margins), last=math.inf)
    if margins or not diverged:
        variant.metrics["clear_divergence_rate"] = _share(texts, _clear_divergence)


def _margin(pair: AnswerPair) -> float | None:
    return pair.divergence.margin if pair.divergence is not None else None


def _near_tie(pair: AnswerPair) -> bool:
    margin = _margin(pair)
    return margin is not None and margin < NEAR_TIE


def _clear_divergence(pair: AnswerPair) -> bool:
    """A failed request is a changed answer."""
    return pair.failed or (pair.divergence is not None and not _near_tie(pair))


def _measure_scores(variant: Variant, pairs: Sequence[AnswerPair]) -> None:
    """Metrics of choices and documents, which both engines score. A document that failed has an unknown log-probability, and
    the ratio of perplexities is NaN."""
    both = [pair for pair in pairs if not pair.failed and pair.a.scores and len(pair.a.scores) == len(pair.b.scores)]
    if both:
        shifts = [
            [score_shift(a, b) for pair in repeats for a, b in zip(pair.a.scores, pair.b.scores, strict=True)]
            for repeats in _by_sample(both)
        ]
        most = largest([shift for sample_shifts in shifts for shift in sample_shifts])
        variant.metrics |= {"logprob_shift": positive_mean(shifts), "logprob_shift_max": around(most, None, len(both))}
    documents = [pair for pair in both if pair.a.units]
    failed = [[math.nan] for pair in pairs if pair.failed and pair.a.form == DOCUMENT]
    if documents or failed:
        by_token = bool(documents) and all(pair.same_tokens for pair in documents)
        per_unit = []
        for pair in documents:  # the difference of log-probabilities as that of each of the document's units
            units, (a, b) = pair.a.scored_tokens if by_token else pair.a.units, (pair.a.scores[0], pair.b.scores[0])
            per_unit.append([0.0 if a == b else (a - b) / units] * max(1, round(units)))
        _measure_perplexity(variant, [*per_unit, *failed], "ppl_ratio" if by_token else "word_ppl_ratio")


def _measure_perplexity(variant: Variant, groups: Sequence[Sequence[float]], name: str = "ppl_ratio") -> None:
    """From differences of log-probabilities, baseline minus candidate, in independent groups."""
    ratio = clustered_mean(groups)
    variant.metrics[name] = exponential(ratio)
    variant.p_values[name] = p_of_zero(ratio, sum(map(bool, groups)) - 1)


def measure_forced(variant: Variant, texts: Sequence[Sequence[Gap]]) -> Variant:
    """Add metrics of texts that both engines scored token by token; positions of one text are not independent.

    NaN at one position makes every metric NaN, an infinite KL makes it infinite, and no greedy token agrees with NaN.
    """
    gaps = [gap for text in texts for gap in text]
    nonfinite = sum(not math.isfinite(gap.kl) for gap in gaps)
    variant.counts |= {"positions": len(gaps), "nonfinite_positions": nonfinite, "forced_texts": len(texts)}
    variant.metrics["nonfinite_rate"] = rate(nonfinite, len(gaps))
    if not gaps:
        return variant
    values, n = [gap.kl for gap in gaps], len(gaps)
    variant.metrics["kl_mean"] = positive_mean([[gap.kl for gap in text] for text in texts])
    variant.metrics |= clustered_percentiles([[gap.kl for gap in text] for text in texts], KL_SHARES)
    variant.metrics["kl_max"] = around(largest(values), None, n)
    squares = clustered_mean([[gap.delta_p**2 for gap in text] for text in texts])
    variant.metrics["delta_p_rms"] = _root(inside(squares))
    variant.metrics["top1_agreement"] = clustered_rate([[float(gap.same_top) for gap in text] for text in texts])
    _measure_perplexity(variant, [[gap.first - gap.second for gap in text] for text in texts])
    return variant


def _root(estimate: Estimate) -> Estimate:
    """The square root of a mean of squares."""
    value = math.sqrt(estimate.value)
    if estimate.stderr is None or estimate.low is None or estimate.high is None:
        return around(value, None, estimate.n)
    error = estimate.stderr / (2 * value) if value else 0.0
    return Estimate(value, error, math.sqrt(max(0.0, estimate.low)), math.sqrt(estimate.high), estimate.n)


def forced_series(texts: Sequence[Sequence[Gap]]) -> dict[str, Any]:
    """The data of charts: every finite KL, and the agreement of the top token at each position, counted from 1."""
    finite = [gap.kl for text in texts for gap in text if math.isfinite(gap.kl)]
    longest = min(MAX_POSITIONS, max((len(text) for text in texts), default=0))
    positions = []
    for index in range(longest):
        gaps = [text[index] for text in texts if index < len(text)]
        agreement = sum(gap.same_top for gap in gaps) / len(gaps)
        positions.append({"position": index + 1, "agreement": agreement, "n": len(gaps)})
    return {"kl": finite, "agreement_by_position": positions}


def group_measurements(pairs: Sequence[AnswerPair]) -> list[dict[str, Any]]:
    """The main rates for each category of each task."""
    groups: dict[tuple[str, str], list[AnswerPair]] = {}
    for pair in pairs:
        groups.setdefault((pair.a.task, pair.a.category), []).append(pair)
    entries = []
    for (task, category), members in sorted(groups.items()):
        estimates = measure_answers(Variant(category), members).metrics
        names = ("match_rate", "flip_rate", "acc_baseline", "acc", "score_baseline", "score")
        rates = {name: estimates[name] for name in names if name in estimates}
        values = {name: [rate.value, rate.low, rate.high, rate.n] for name, rate in rates.items()}
        entries.append({"task": task, "category": category, "n": len(_by_sample(members)), **values})
    return entries
