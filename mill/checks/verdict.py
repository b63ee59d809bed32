"""What a check found, in one sentence: unchanged within noise, worse, better, different, or too few samples to tell.

Worse and better rest on gold answers, graded scores, or texts that neither engine wrote. The baseline's own answers are the
likeliest texts to the baseline, so that any other engine finds them less likely: that only shows that the two differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mill.checks.glossary import counted, format_value
from mill.checks.result import Variant
from mill.metrics.estimate import Estimate
from mill.metrics.paired import Z95

UNCHANGED, WORSE, BETTER, DIFFERENT, UNDECIDED = "unchanged", "worse", "better", "different", "cannot tell"
SIGNIFICANT = 0.05
MARGIN = 0.01  # an accuracy that lies within a point is the same for most purposes
RATIO_MARGIN = math.log(1.01)  # and so is a perplexity within one per cent


@dataclass(frozen=True)
class Finding:
    """One thing that the data say."""

    status: str
    text: str


def verdict(variant: Variant) -> str:
    """The sentence that stands first wherever the check is shown."""
    found = [*_faults(variant), *_tests(variant)]
    texts = _differences(variant)
    for status in (WORSE, BETTER, DIFFERENT):
        if any(finding.status == status for finding in found):
            said = [finding.text for finding in found if finding.status == status]
            rest = [finding.text for finding in found if finding.status != status]
            return f"{status}: {'; '.join([*said, *rest, *texts])}"
    if _identical(variant):
        n = counted(variant.counts["samples"], "sample")
        return f"{UNCHANGED} on these {n}: {'; '.join(texts)}, and KL is 0{_beyond(found)}"
    undecided = [finding.text for finding in found if finding.status == UNDECIDED]
    if undecided:
        return f"{UNDECIDED} at this n: {'; '.join([*undecided, *texts])}"
    steady = [finding.text for finding in found]
    if not steady and variant.counts.get("diverged"):
        return f"{DIFFERENT}: {'; '.join(texts)}; no gold answers or log-probabilities say whether for the worse"
    if steady or texts:
        return f"{UNCHANGED} within noise: {'; '.join([*steady, *texts])}"
    return f"{UNDECIDED}: nothing could be compared"


def _identical(variant: Variant) -> bool:
    """Whether both engines computed the same: equal texts, and distributions without any divergence."""
    largest, same = variant.metrics.get("kl_max"), variant.metrics.get("match_rate")
    return largest is not None and largest.value == 0.0 and same is not None and same.value == 1.0


def _beyond(found: Sequence[Finding]) -> str:
    """What equal texts on few samples leave open."""
    open_ = [finding.text for finding in found if finding.status == UNDECIDED]
    return f"; of others it cannot tell: {'; '.join(open_)}" if open_ else ""


def _faults(variant: Variant) -> list[Finding]:
    """What no noise explains."""
    counts, found = variant.counts, []
    n = counts.get("samples", 0)
    if counts.get("failed"):
        found.append(f"{counts['failed']} of {n} samples failed")
    if counts.get("nonfinite_positions"):
        found.append(f"{counts['nonfinite_positions']} of {counts['positions']} positions are NaN or infinite")
    if variant.unmeasured:
        found.append(next(iter(variant.unmeasured.values())))
    if counts.get("filtered"):
        found.append(f"{counts['filtered']} of {n} answers were filtered")
    return [Finding(WORSE, text) for text in found]


def _tests(variant: Variant) -> list[Finding]:
    """Lost accuracy, lost score and perplexity, each held against chance. Several tests share the 5 % (Bonferroni)."""
    tested = [name for name in ("acc_drop", "score_drop", "ppl_ratio") if name in variant.metrics]
    names = [name for name in tested if name in variant.p_values]
    return [_test(variant, name, SIGNIFICANT / len(names)) for name in names]


def _test(variant: Variant, name: str, level: float) -> Finding:
    """A change that is shown to lie within the margin is none, however sure; one that is beyond must not be chance."""
    estimate, p = variant.metrics[name], variant.p_values[name]
    value, low, high = (_difference(name, one) for one in (estimate.value, estimate.low, estimate.high))
    shown, margin = _shown(name, estimate, p), _margin(name, variant)
    if value is None or not math.isfinite(value):
        return Finding(WORSE, f"{shown}: not a finite number")
    if low is not None and high is not None and -margin <= low and high <= margin:
        return Finding(UNCHANGED, shown)
    if p < level and value:
        on_own_answers = name == "ppl_ratio" and "forced_texts" in variant.counts
        return Finding(DIFFERENT if on_own_answers else WORSE if value > 0 else BETTER, shown)
    return Finding(UNDECIDED, shown + _needed(name, variant, margin))


def _difference(name: str, value: float | None) -> float | None:
    """As a logarithm a ratio is a difference."""
    if value is None or name != "ppl_ratio":
        return value
    return math.nan if math.isnan(value) else math.log(value) if value > 0 else -math.inf


def _margin(name: str, variant: Variant) -> float:
    if name == "ppl_ratio":
        return RATIO_MARGIN
    if name == "acc_drop":
        return MARGIN
    return MARGIN * abs(variant.metrics["score_baseline"].value)


def _shown(name: str, estimate: Estimate, p: float) -> str:
    words = {"acc_drop": "accuracy lost", "score_drop": "score lost", "ppl_ratio": "perplexity ratio"}
    text = f"{words[name]} {format_value(name, estimate.value)}"
    if estimate.low is not None and estimate.high is not None:
        text += f" ({format_value(name, estimate.low)} to {format_value(name, estimate.high)})"
    return text if math.isnan(p) else f"{text}, p = {p:.2g}"


def _needed(name: str, variant: Variant, margin: float) -> str:
    """How many samples would show that no more than the margin was lost, if as many pairs changed both ways as did here."""
    n = variant.metrics[name].n
    if name != "acc_drop" or not n:
        return ""
    changed = (variant.counts.get("regressions", 0) + variant.counts.get("improvements", 0)) / n
    needed = n
    while Z95 * math.sqrt(changed * needed + 1) / (needed + 2) > margin:
        needed = math.ceil(needed * 1.02) + 1
    return f"; about {_rounded(needed)} samples would show a change within {counted(round(100 * margin), 'point')}"


def _rounded(count: int) -> str:
    digits = max(0, len(str(count)) - 2)
    return f"{math.ceil(count / 10**digits) * 10**digits:,}"


def _differences(variant: Variant) -> list[str]:
    """What the texts say; differences at near-ties are rounding."""
    counts, found = variant.counts, []
    texts = variant.metrics.get("match_rate")
    if texts is not None and texts.n:
        parted = counts.get("diverged", 0)
        found.append(f"{parted} of {texts.n} texts differ" if parted else f"all {texts.n} texts are the same")
        if parted and counts.get("near_ties"):
            found[-1] += f", {counts['near_ties']} of them at a near-tie"
    if counts.get("both_empty"):
        found.append(f"{counts['both_empty']} answers are empty on both sides and say nothing")
    return found


def load_verdict(variant: Variant, lowest: Variant) -> str:
    """Of a level of load: do answers still come, are they those of the lowest level, and what does a user feel?"""
    counts = variant.counts
    asked = counts["samples"] * counts["repetitions"]
    parted = counts.get("diverged", 0)
    if counts["failed"]:
        first = f"{WORSE}: {counts['failed']} of {asked} requests failed"
    elif "match_rate" not in variant.metrics:
        first = f"no request of {asked} failed"
    elif variant is lowest:
        noise = f"{parted} of {counts['samples']} texts differ between repetitions"
        first = noise if parted else "what the other levels are compared with"
    elif parted:
        first = f"{DIFFERENT}: {parted} of {counts['samples']} texts differ from those at {lowest.label}"
    else:
        first = f"{UNCHANGED}: all {counts['samples']} texts are those at {lowest.label}"
    felt = (("requests_per_s", "requests a second"), ("latency_p50", "median latency"))
    speeds = [_times(variant, lowest, name, words) for name, words in felt]
    return "; ".join([first, *filter(None, speeds)])


def _times(variant: Variant, lowest: Variant, name: str, words: str) -> str:
    if name not in variant.metrics:
        return ""
    value = variant.metrics[name].value
    text = f"{words} {format_value(name, value)}"
    base = lowest.metrics.get(name)
    return text if variant is lowest or base is None or not base.value else f"{text} ({value / base.value:.2g} times)"


def repeat_verdict(variant: Variant) -> str:
    """Of the same prompts, asked several times."""
    counts, estimate = variant.counts, variant.metrics["identical_rate"]
    runs, n = counts["runs"], counts["samples"]
    if counts.get("failed"):
        return f"{WORSE}: {counts['failed']} of {n * runs} requests failed"
    if not n:
        return f"{UNDECIDED}: no prompt was answered"
    if counts["diverged"]:
        return f"not deterministic: {counts['diverged']} of {n} prompts got different answers over {runs} runs"
    most = (
        "" if estimate.low is None else f" (at this n, up to {format_value('identical_rate', 1 - estimate.low)} of prompts may)"
    )
    return f"no difference found: none of {n} prompts got another answer in {runs} runs{most}"


def first_sentences(variants: Sequence[Variant]) -> list[str]:
    """A verdict for each variant, after its label."""
    return [f"{variant.label}: {variant.verdict}" for variant in variants if variant.verdict]
