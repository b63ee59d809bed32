"""The verdict of a check: unchanged within noise, worse, better, different or inconclusive.

Worse and better need gold answers, graded scores, or texts that neither engine generated. The baseline gives its own greedy
answers a high probability, so any other engine gives them a lower one: that only shows that the two differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mill.checks.glossary import RATIOS, counted, format_interval, format_value, title
from mill.checks.result import Variant
from mill.metrics.paired import holm, needed_samples

UNCHANGED, WORSE, BETTER, DIFFERENT, UNDECIDED = "unchanged", "worse", "better", "different", "inconclusive"
SIGNIFICANT = 0.05
MARGIN = 0.01  # a change of accuracy within one point counts as unchanged
_HEADS = {UNCHANGED: "unchanged within noise", UNDECIDED: "inconclusive at this n"}
RATIO_MARGIN = math.log(1.01)  # and so does a change of perplexity within one per cent


@dataclass(frozen=True)
class Finding:
    """One result of the data, with its status."""

    status: str
    text: str


def verdict(variant: Variant) -> str:
    """What comes first in every report of the check: a sentence about accuracy, score and perplexity, and one about texts,
    each with its own status. A difference comes before what is inconclusive; equal statuses share a sentence."""
    tests = [_test(variant, name, p) for name, p in corrected_tests(variant).items()]
    findings, texts = [*_faults(variant), *tests], _differences(variant)
    statuses = {finding.status for finding in findings}
    status = next((one for one in (WORSE, BETTER, DIFFERENT, UNDECIDED) if one in statuses), UNCHANGED)
    kl, same = variant.metrics.get("kl_max"), variant.metrics.get("match_rate")
    identical = kl is not None and kl.value == 0.0 and same is not None and same.value == 1.0
    if identical and status in (UNCHANGED, UNDECIDED):
        n = counted(variant.counts["samples"], "sample")
        undecided = "; ".join(finding.text for finding in findings if finding.status == UNDECIDED)
        other = f"; {UNDECIDED} for other samples: {undecided}" if undecided else ""
        return f"{UNCHANGED} on these {n}: {'; '.join(texts)}, and KL is 0{other}"
    diverged = bool(variant.counts.get("diverged"))
    if not findings and diverged:
        return f"{DIFFERENT}: {'; '.join(texts)}; without gold answers or log-probabilities, whether worse is unknown"
    if not findings and "match_rate" not in variant.metrics:
        return f"{UNDECIDED}: {'; '.join(texts) or 'nothing could be compared'}"
    if not findings:
        return f"{UNCHANGED} within noise: {'; '.join(texts)}"
    first = [finding.text for finding in findings if finding.status == status]
    rest = [finding.text for finding in findings if finding.status != status]
    tested = f"{_HEADS.get(status, status)}: {'; '.join([*first, *rest])}"
    of_texts = DIFFERENT if diverged else UNCHANGED
    if not texts or "match_rate" not in variant.metrics or status == of_texts:
        return "; ".join([tested, *texts])
    compared = f"{of_texts}: {'; '.join(texts)}"
    return f"{compared}. {tested}" if status == UNDECIDED and diverged else f"{tested}. {compared}"


def _faults(variant: Variant) -> list[Finding]:
    """Problems that noise does not explain."""
    counts, faults = variant.counts, []
    n, failed = counts.get("samples", 0), counts.get("failed", 0)
    own = counts.get("candidate_failed", failed)
    if own and own < n:
        faults.append(f"{own} of {n} samples failed")
    if counts.get("nonfinite_positions"):
        faults.append(f"{counts['nonfinite_positions']} of {counts['positions']} positions are NaN or infinite")
    if variant.unmeasured and failed == own:
        faults.append(next(iter(variant.unmeasured.values())))
    if counts.get("filtered"):
        faults.append(f"{counts['filtered']} of {n} answers were filtered")
    findings = [Finding(WORSE, text) for text in faults]
    if variant.unmeasured and failed > own:  # failures of the baseline say nothing about the candidate
        findings.append(Finding(UNDECIDED, next(iter(variant.unmeasured.values()))))
    if own and own == n:
        return [*findings, Finding(UNDECIDED, f"all {n} samples failed, so nothing can be compared")]
    return findings + [Finding(UNDECIDED, reason) for reason in dict.fromkeys(variant.inconclusive.values())]


def corrected_tests(variant: Variant) -> dict[str, float]:
    """The p-values of all tests of a verdict, corrected by Holm's method: together they are wrong in 5 % of cases."""
    measured: list[str] = [name for name in ("acc_drop", "score_drop", *RATIOS) if name in variant.metrics]
    names = [name for name in measured if name not in variant.unmeasured and name in variant.p_values]
    return dict(zip(names, holm([variant.p_values[name] for name in names]), strict=True))


def _test(variant: Variant, name: str, corrected: float) -> Finding:
    """An interval within the margin counts as unchanged, even if the change is significant."""
    estimate, p = variant.metrics[name], variant.p_values[name]
    value, low, high = (_difference(name, bound) for bound in (estimate.value, estimate.low, estimate.high))
    parts = (f"{title(name)} {format_value(name, estimate.value)}", format_interval(name, estimate))
    text, margin = " ".join(filter(None, parts)) + ("" if math.isnan(p) else f", p = {p:.2g}"), _margin(name, variant)
    if value is None or not math.isfinite(value):
        unknown = name in RATIOS and variant.counts.get("failed") and math.isnan(estimate.value)
        return Finding(UNDECIDED if unknown else WORSE, f"{text}: not a finite number")
    if low is not None and high is not None and -margin <= low and high <= margin:
        return Finding(UNCHANGED, text)
    if corrected < SIGNIFICANT and value:
        on_own_answers = name == "ppl_ratio" and "forced_texts" in variant.counts
        return Finding(DIFFERENT if on_own_answers else WORSE if value > 0 else BETTER, text)
    strictest = SIGNIFICANT / max(1, len(corrected_tests(variant)))  # at which any one test is surely significant
    return Finding(UNDECIDED, text + _needed(name, variant, margin, strictest))


def _difference(name: str, value: float | None) -> float | None:
    """A ratio becomes a difference by its logarithm."""
    if value is None or name not in RATIOS:
        return value
    return math.nan if math.isnan(value) else math.log(value) if value > 0 else -math.inf


def _margin(name: str, variant: Variant) -> float:
    if name in RATIOS:
        return RATIO_MARGIN
    if name == "acc_drop":
        return MARGIN
    return MARGIN * abs(variant.metrics["score_baseline"].value)


def _needed(name: str, variant: Variant, margin: float, level: float) -> str:
    """How many samples McNemar's test needs to find such a change, or one at the margin, four times out of five, if pairs
    change as often as they did here; empty where no number follows."""
    estimate = variant.metrics[name]
    if name != "acc_drop" or not estimate.n:
        return ""
    worse, better = variant.counts.get("regressions", 0), variant.counts.get("improvements", 0)
    n = estimate.n
    if abs(estimate.value) > margin:
        loss, gains, what = abs(worse - better) / n, min(worse, better) / n, "whether a change of this size is real"
    else:  # few samples without a gain do not show that there is none
        loss, gains, what = margin, (better + 0.5) / (n + 2), f"a loss of {counted(round(100 * margin), 'point')}"
    needed = max(n, needed_samples(loss, gains, level))
    digits = max(0, len(str(needed)) - 2)  # what is estimated is not exact
    return f"; about {math.ceil(needed / 10**digits) * 10**digits:,} samples would show {what}"


def _differences(variant: Variant) -> list[str]:
    """How many texts differ; differences at near-ties come from rounding."""
    counts, differences = variant.counts, []
    texts = variant.metrics.get("match_rate")
    if texts is not None and texts.n:
        diverged, answered = counts.get("diverged", 0), texts.n - counts.get("severity_failed", 0)
        if diverged:
            differences.append(f"{diverged} of {texts.n} texts differ")
        elif answered == texts.n:
            differences.append(f"all {texts.n} texts are the same")
        elif answered > 0:
            differences.append(f"all {answered} texts that both models answered are the same")
        if diverged and counts.get("near_ties"):
            differences[-1] += f", {counts['near_ties']} of them at a near-tie"
    if counts.get("both_empty"):
        differences.append(f"{counts['both_empty']} answers are empty on both sides and not compared")
    return differences


def load_verdict(variant: Variant, lowest: Variant) -> str:
    """The verdict of a level of load: failed requests, changed answers, throughput and latency."""
    counts = variant.counts
    requests = counts["samples"] * counts["repetitions"]
    diverged = counts.get("diverged", 0)
    if counts["failed"]:
        first = f"{WORSE}: {counts['failed']} of {requests} requests failed"
    elif "match_rate" not in variant.metrics:
        first = f"none of {requests} requests failed"
    elif variant is lowest:
        noise = f"{diverged} of {counts['samples']} texts differ between repetitions"
        first = noise if diverged else "reference level"
    elif diverged:
        first = f"{DIFFERENT}: {diverged} of {counts['samples']} texts differ from those at {lowest.label}"
    else:
        first = f"{UNCHANGED}: all {counts['samples']} texts equal those at {lowest.label}"
    speeds = [_relative_speed(variant, lowest, name) for name in ("requests_per_s", "latency_p50")]
    return "; ".join([first, *filter(None, speeds)])


def _relative_speed(variant: Variant, lowest: Variant, name: str) -> str:
    if name not in variant.metrics:
        return ""
    value = variant.metrics[name].value
    text = f"{title(name)} {format_value(name, value)}"
    base = lowest.metrics.get(name)
    return text if variant is lowest or base is None or not base.value else f"{text} ({value / base.value:.2g} times)"


def repeat_verdict(variant: Variant) -> str:
    """The verdict of prompts that were sent several times."""
    counts, estimate = variant.counts, variant.metrics["identical_rate"]
    runs, n = counts["runs"], counts["samples"]
    if counts.get("failed"):
        return f"{WORSE}: {counts['failed']} of {n * runs} requests failed"
    if not n:
        return f"{UNDECIDED}: every answer is empty"
    if counts["diverged"]:
        near = f", {counts['near_ties']} of them first at a near-tie" if counts.get("near_ties") else ""
        return f"not deterministic: {counts['diverged']} of {n} prompts got different answers over {runs} runs{near}"
    most = (
        ""
        if estimate.low is None
        else f" (at this n, up to {format_value('identical_rate', 1 - estimate.low)} of prompts may differ)"
    )
    return f"no difference found: none of {n} prompts got a different answer in {runs} runs{most}"


def first_sentences(variants: Sequence[Variant]) -> list[str]:
    """A verdict for each variant, after its label."""
    return [f"{variant.label}: {variant.verdict}" for variant in variants if variant.verdict]
