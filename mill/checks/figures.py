"""Figures of two runs over the same samples, each with its interval."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mill.checks.pairing import Pair
from mill.metrics.divergence import Gap
from mill.metrics.estimate import Estimate, around
from mill.metrics.paired import (
    clustered_mean,
    exponential,
    inside,
    mcnemar,
    mean_of,
    p_of_zero,
    percentile,
    rate,
    rate_difference,
)

NEAR_TIE = 0.1  # nats: closer than this, the two best tokens change places by rounding alone
KL_SHARES = {"kl_median": 0.5, "kl_p90": 0.9, "kl_p95": 0.95, "kl_p99": 0.99}
MOST_PLACES = 64  # of a text whose agreement is shown place by place


@dataclass
class Figures:
    """Estimates by name, the p-values of those that have a test, and plain counts."""

    estimates: dict[str, Estimate] = field(default_factory=dict)
    p_values: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, other: Figures) -> None:
        self.estimates |= other.estimates
        self.p_values |= other.p_values
        self.counts |= other.counts


def free_figures(pairs: Sequence[Pair]) -> Figures:
    """Of answers that each engine gave by itself. Every sample counts: a failed one as changed, unlike and not right."""
    found, n = Figures(), len(pairs)
    found.counts = {"samples": n, "failed": sum(pair.failed for pair in pairs)}
    found.counts |= {f"severity_{tier}": count for tier, count in Counter(pair.severity for pair in pairs).items()}
    found.estimates["failure_rate"] = rate(found.counts["failed"], n)
    spoken = [pair for pair in pairs if pair.a.spoken]
    if spoken:
        found.estimates["match_rate"] = rate(sum(pair.identical for pair in spoken), len(spoken))
    found.estimates["similarity"] = inside(mean_of([pair.similarity for pair in pairs]))
    flips = [pair.flipped for pair in pairs if pair.flipped is not None]
    if flips:
        found.counts["flips"] = sum(flips)
        found.estimates["flip_rate"] = rate(sum(flips), len(flips))
    found.add(_right(pairs))
    found.add(_parted(pairs))
    found.add(_scored(pairs))
    return found


def _right(pairs: Sequence[Pair]) -> Figures:
    """Accuracy on both sides, and whether more got worse than better."""
    known = [pair.rightness for pair in pairs if pair.rightness is not None]
    if not known:
        return Figures()
    n, worse, better = len(known), known.count((True, False)), known.count((False, True))
    return Figures(
        {
            "acc_baseline": rate(sum(a for a, _ in known), n),
            "acc": rate(sum(b for _, b in known), n),
            "acc_drop": rate_difference(worse, better, n),
            "regression_rate": rate(worse, n),
            "improvement_rate": rate(better, n),
        },
        {"acc_drop": mcnemar(worse, better)},
        {"regressions": worse, "improvements": better},
    )


def _parted(pairs: Sequence[Pair]) -> Figures:
    """How many texts part, where, and how many of them not for a near-tie."""
    parted = [pair.parting for pair in pairs if pair.parting is not None]
    found = Figures(counts={"parted": len(parted)})
    places = [float(parting.token) for parting in parted if parting.token is not None]
    if places:
        found.estimates["first_parting"] = inside(mean_of(places), last=math.inf)
    margins = [parting.margin for parting in parted if parting.margin is not None]
    if margins:
        clear = sum(margin >= NEAR_TIE for margin in margins)
        found.counts |= {"near_ties": len(margins) - clear, "clear_partings": clear}
        found.estimates["parting_margin"] = mean_of(margins)
        if len(margins) == len(parted):
            found.estimates["clear_parting_rate"] = rate(clear, len(pairs))
    return found


def _scored(pairs: Sequence[Pair]) -> Figures:
    """Of choices and documents, which both engines score as they are."""
    both = [pair for pair in pairs if not pair.failed and pair.a.scores and len(pair.a.scores) == len(pair.b.scores)]
    shifts = [[abs(b - a) for a, b in zip(pair.a.scores, pair.b.scores, strict=True)] for pair in both]
    finite = [[shift for shift in of_one if math.isfinite(shift)] for of_one in shifts]
    if not any(finite):
        return Figures()
    most = max(shift for of_one in finite for shift in of_one)
    found = Figures({"logprob_shift": clustered_mean(finite), "logprob_shift_max": around(most, None, len(both))})
    documents = [pair for pair in both if pair.a.units]
    if documents:
        per_unit = [[(pair.a.scores[0] - pair.b.scores[0]) / pair.a.units] * round(pair.a.units) for pair in documents]
        ratio = clustered_mean(per_unit)
        found.estimates["ppl_ratio"] = exponential(ratio)
        found.p_values["ppl_ratio"] = p_of_zero(ratio)
    return found


def forced_figures(texts: Sequence[Sequence[Gap]]) -> Figures:
    """Of texts that both engines scored token by token; places of one text are not independent."""
    gaps = [gap for of_text in texts for gap in of_text]
    finite = [[gap for gap in of_text if math.isfinite(gap.kl)] for of_text in texts]
    good = [gap for of_text in finite for gap in of_text]
    found = Figures(counts={"places": len(gaps), "nonfinite_places": len(gaps) - len(good), "forced_texts": len(texts)})
    found.estimates["nonfinite_rate"] = rate(len(gaps) - len(good), len(gaps))
    if not gaps:
        return found
    # One NaN makes the mean NaN: what is not known is not left out of a figure that gates read.
    found.estimates["kl_mean"] = inside(clustered_mean([[gap.kl for gap in of_text] for of_text in texts]), last=math.inf)
    if not good:
        return found
    values, n = [gap.kl for gap in good], len(good)
    for name, share in KL_SHARES.items():
        found.estimates[name] = around(percentile(values, share), None, n)
    found.estimates["kl_max"] = around(max(values), None, n)
    squares = clustered_mean([[gap.delta_p**2 for gap in of_text] for of_text in finite])
    found.estimates["delta_p_rms"] = _root(squares)
    same = clustered_mean([[float(gap.same_top) for gap in of_text] for of_text in finite])
    found.estimates["top1_agreement"] = inside(same)
    ratio = clustered_mean([[gap.first - gap.second for gap in of_text] for of_text in finite])
    found.estimates["ppl_ratio"] = exponential(ratio)
    found.p_values["ppl_ratio"] = p_of_zero(ratio)
    return found


def _root(estimate: Estimate) -> Estimate:
    """The square root of a mean of squares."""
    value = math.sqrt(estimate.value)
    if estimate.stderr is None or estimate.low is None or estimate.high is None:
        return around(value, None, estimate.n)
    error = estimate.stderr / (2 * value) if value else 0.0
    return Estimate(value, error, math.sqrt(max(0.0, estimate.low)), math.sqrt(estimate.high), estimate.n)


def forced_series(texts: Sequence[Sequence[Gap]]) -> dict[str, Any]:
    """What charts of forced texts are drawn from: every divergence, and the agreement place by place."""
    finite = [gap.kl for of_text in texts for gap in of_text if math.isfinite(gap.kl)]
    longest = min(MOST_PLACES, max((len(of_text) for of_text in texts), default=0))
    places = []
    for place in range(longest):
        here = [of_text[place] for of_text in texts if place < len(of_text) and math.isfinite(of_text[place].kl)]
        if here:
            places.append({"place": place, "agreement": sum(gap.same_top for gap in here) / len(here), "n": len(here)})
    return {"kl": finite, "agreement_by_place": places}


def group_figures(pairs: Sequence[Pair]) -> list[dict[str, Any]]:
    """The main rates for each category of each task."""
    groups: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs:
        groups.setdefault((pair.a.task, pair.a.category), []).append(pair)
    found = []
    for (task, category), members in sorted(groups.items()):
        figures = free_figures(members)
        wanted = ("match_rate", "flip_rate", "acc_baseline", "acc")
        rates = {name: figures.estimates[name] for name in wanted if name in figures.estimates}
        entry = {name: [one.value, one.low, one.high, one.n] for name, one in rates.items()}
        found.append({"task": task, "category": category, "n": len(members), **entry})
    return found
