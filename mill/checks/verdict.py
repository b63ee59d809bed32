"""What a check found, in one sentence: unchanged within noise, worse, better, or too few samples to tell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mill.checks.glossary import counted, written
from mill.checks.result import Variant
from mill.metrics.estimate import Estimate

UNCHANGED, WORSE, BETTER, CHANGED, UNDECIDED = "unchanged", "worse", "better", "changed", "cannot tell"
SIGNIFICANT = 0.05
MARGIN = 0.01  # an accuracy that lies within a point is the same for most purposes
RATIO_MARGIN = math.log(1.01)  # and so is a perplexity within one per cent
_POWER = (1.959964 + 0.841621) ** 2  # a two-sided test at 5 % that finds a difference in 80 of 100 cases


@dataclass(frozen=True)
class Finding:
    """One thing that the data say, and whether it is for the worse."""

    status: str
    text: str


def verdict(variant: Variant) -> str:
    """The sentence that stands first wherever the check is shown."""
    found = [*_faults(variant), *_tests(variant)]
    for status in (WORSE, BETTER):
        texts = [finding.text for finding in found if finding.status == status]
        if texts:
            return f"{status}: {'; '.join(texts)}"
    undecided = [finding.text for finding in found if finding.status == UNDECIDED]
    texts = _differences(variant)
    if undecided:
        return f"{UNDECIDED} at this n: {'; '.join([*undecided, *texts])}"
    steady = [finding.text for finding in found if finding.status == UNCHANGED]
    if not steady and variant.counts.get("parted"):
        return f"{CHANGED}: {'; '.join(texts)}; no gold answers or log-probabilities say whether for the worse"
    if steady or texts:
        return f"{UNCHANGED} within noise: {'; '.join([*steady, *texts])}"
    return f"{UNDECIDED}: nothing could be compared"


def _faults(variant: Variant) -> list[Finding]:
    """What no noise explains."""
    counts, found = variant.counts, []
    n = counts.get("samples", 0)
    if counts.get("failed"):
        found.append(f"{counts['failed']} of {n} samples failed")
    if counts.get("nonfinite_places"):
        found.append(f"{counts['nonfinite_places']} of {counts['places']} positions are NaN or infinite")
    if variant.unmeasured:
        found.append(next(iter(variant.unmeasured.values())))
    if counts.get("filtered"):
        found.append(f"{counts['filtered']} of {n} answers were filtered")
    return [Finding(WORSE, text) for text in found]


def _tests(variant: Variant) -> list[Finding]:
    """Lost accuracy, lost score and perplexity, each held against chance. Several tests share the 5 % (Bonferroni)."""
    names = [
        name for name in ("acc_drop", "score_drop", "ppl_ratio") if name in variant.figures and name in variant.p_values
    ]
    return [_test(variant, name, SIGNIFICANT / len(names)) for name in names]


def _test(variant: Variant, name: str, level: float) -> Finding:
    estimate, p = variant.figures[name], variant.p_values[name]
    value, low, high = estimate.value, estimate.low, estimate.high
    if name == "ppl_ratio":  # as a logarithm a ratio is a difference
        value, low, high = (None if one is None else _log(one) for one in (value, low, high))  # type: ignore[assignment]
    shown = _shown(name, estimate, p)
    if not math.isfinite(value):
        return Finding(WORSE, f"{shown}: not a finite number")
    if p < level and value:
        return Finding(WORSE if value > 0 else BETTER, shown)
    margin = _margin(name, variant)
    if low is not None and high is not None and -margin <= low and high <= margin:
        return Finding(UNCHANGED, shown)
    return Finding(UNDECIDED, shown + _needed(name, variant, margin))


def _margin(name: str, variant: Variant) -> float:
    if name == "ppl_ratio":
        return RATIO_MARGIN
    if name == "acc_drop":
        return MARGIN
    return MARGIN * abs(variant.figures["score_baseline"].value)


def _log(value: float) -> float:
    return math.nan if math.isnan(value) else math.log(value) if value > 0 else -math.inf


def _shown(name: str, estimate: Estimate, p: float) -> str:
    text = {"acc_drop": "accuracy lost", "score_drop": "score lost", "ppl_ratio": "perplexity ratio"}[name]
    text = f"{text} {written(name, estimate.value)}"
    if estimate.low is not None and estimate.high is not None:
        text += f" ({written(name, estimate.low)} to {written(name, estimate.high)})"
    return text if math.isnan(p) else f"{text}, p = {p:.2g}"


def _needed(name: str, variant: Variant, margin: float) -> str:
    """How many samples would tell a change of the margin, by the share of pairs that changed here."""
    estimate = variant.figures[name]
    if name != "acc_drop" or not estimate.n:
        return ""
    changed = variant.counts.get("regressions", 0) + variant.counts.get("improvements", 0)
    needed = math.ceil(_POWER * (changed + 1) / (estimate.n + 2) / margin**2)
    return (
        f"; about {_rounded(needed)} samples would tell a change of {counted(round(100 * margin), 'point')}"
        if needed > estimate.n
        else ""
    )


def _rounded(count: int) -> str:
    digits = max(0, len(str(count)) - 2)
    return f"{math.ceil(count / 10**digits) * 10**digits:,}"


def _differences(variant: Variant) -> list[str]:
    """What the texts say; differences at near-ties are rounding."""
    counts, found = variant.counts, []
    texts = variant.figures.get("match_rate")
    if texts is not None and texts.n:
        parted = counts.get("parted", 0)
        found.append(f"{parted} of {texts.n} texts differ" if parted else f"all {texts.n} texts are the same")
        if parted and counts.get("near_ties"):
            found[-1] += f", {counts['near_ties']} of them at a near-tie"
    if counts.get("both_empty"):
        found.append(f"{counts['both_empty']} answers are empty on both sides and say nothing")
    return found


def repeat_verdict(variant: Variant) -> str:
    """Of the same prompts, asked several times."""
    counts, estimate = variant.counts, variant.figures["identical_rate"]
    runs, n = counts["runs"], counts["samples"]
    if counts.get("failed"):
        return f"{WORSE}: {counts['failed']} of {n * runs} requests failed"
    if not n:
        return f"{UNDECIDED}: no prompt was answered"
    if counts["parted"]:
        return f"not deterministic: {counts['parted']} of {n} prompts got different answers over {runs} runs"
    rest = "" if estimate.low is None else f"; up to {written('identical_rate', 1 - estimate.low)} of all prompts might not"
    return f"deterministic: all {n} prompts got the same answer in {runs} runs{rest}"


def first_sentences(variants: Sequence[Variant]) -> list[str]:
    """A verdict for each variant, with its label where there are several."""
    told = [(variant.label, variant.verdict) for variant in variants if variant.verdict]
    return [f"{label}: {text}" for label, text in told]
