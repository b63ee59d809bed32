"""A check in plain sentences: what changed, whether that is noise, and what so many samples can and cannot show."""

from __future__ import annotations

import math

from mill.checks.glossary import RATIOS, counted, format_interval, format_value
from mill.checks.result import Check, Variant
from mill.checks.verdict import MARGIN, SIGNIFICANT, corrected_tests, strictest_level
from mill.metrics.estimate import Estimate
from mill.metrics.paired import POWER, detectable_loss, needed_samples
from mill.tasks.suite import SUITES

WANTED = 0.02  # the loss of accuracy that a suggested number of samples would show
LARGE_TASK = "hellaswag_gen"  # a task of 10,042 samples that every engine serves
MOST_SAMPLES = 10_000


def compared_sentences(check: Check, variant: Variant) -> list[str]:
    """About a candidate and its baseline."""
    if variant.decision is not None:  # the verdict has it, without tests for a fixed number of samples
        return [*_failures(variant), *_answers(variant), *_texts(variant)]
    sentences = [*_failures(variant), *_accuracy(variant), *_score(variant), *_answers(variant), *_texts(variant)]
    return [*sentences, *_distributions(variant), *_reach(check, variant)]


def _measured(variant: Variant, *names: str) -> list[Estimate] | None:
    """The estimates of metrics that were all measured, each a finite number of at least one sample."""
    found = [variant.metrics[name] for name in names if name in variant.metrics and name not in variant.unmeasured]
    return found if len(found) == len(names) and all(one.n and math.isfinite(one.value) for one in found) else None


def _failures(variant: Variant) -> list[str]:
    counts, found = variant.counts, list[str]()
    n, failed = counts.get("samples", 0), counts.get("failed", 0)
    own = counts.get("candidate_failed", failed)
    if failed and n in (own, failed - own):
        found.append(f"All {counted(n, 'request')} failed on one side: nothing can be compared.")
    elif failed:
        whose = "" if own == failed else f", {own} of them on {variant.label}"
        found.append(f"{failed} of {counted(n, 'request')} failed{whose}: a failed request counts as changed and as wrong.")
    if counts.get("nonfinite_positions"):
        found.append(
            f"The log-probabilities of {counted(counts['nonfinite_positions'], 'position')} are NaN or infinite: that is a "
            "fault of an engine, not noise."
        )
    found += [f"Not everything could be measured: {reason}." for reason in dict.fromkeys(variant.unmeasured.values())]
    return found + [f"Inconclusive: {reason}." for reason in dict.fromkeys(variant.inconclusive.values())]


def _accuracy(variant: Variant) -> list[str]:
    found = _measured(variant, "acc_drop", "acc_baseline", "acc")
    if found is None:
        return []
    drop, before, after = found
    worse, better = variant.counts.get("regressions", 0), variant.counts.get("improvements", 0)
    from_to = f"from {format_value('acc', before.value)} to {format_value('acc', after.value)}"
    changed = f"{counted(worse, 'answer')} became wrong and {better} became right"
    interval = format_interval("acc_drop", drop)
    p, corrected = (one.get("acc_drop", math.nan) for one in (variant.p_values, corrected_tests(variant)))
    if corrected < SIGNIFICANT and drop.value:
        direction = "fell" if drop.value > 0 else "rose"
        return [f"Accuracy {direction} {from_to}: {changed}, which is not noise (lost {interval[1:-1]}, p = {p:.2g})."]
    if within_margin(drop):
        return [f"Accuracy is unchanged: {from_to}, and the whole interval of the loss {interval} is within one point."]
    if not worse + better:
        return [f"No accuracy change detected: none of {drop.n} answers became wrong or right (lost {interval[1:-1]})."]
    return [f"No accuracy change detected: {from_to}, {changed}, which may be chance (lost {interval[1:-1]}, p = {p:.2g})."]


def within_margin(drop: Estimate) -> bool:
    """Whether the interval of a lost accuracy is within the margin that counts as unchanged."""
    return drop.low is not None and drop.high is not None and drop.low >= -MARGIN and drop.high <= MARGIN


def _score(variant: Variant) -> list[str]:
    found = _measured(variant, "score_drop", "score_baseline", "score")
    if found is None:
        return []
    drop, before, after = found
    p, corrected = (one.get("score_drop", math.nan) for one in (variant.p_values, corrected_tests(variant)))
    from_to = f"from {format_value('score', before.value)} to {format_value('score', after.value)}"
    change = f"lost {format_value('score_drop', drop.value)} {format_interval('score_drop', drop)}".rstrip()
    if corrected < SIGNIFICANT and drop.value:
        how = "worse" if drop.value > 0 else "better"
        return [f"The mean score got {how}, {from_to} ({change}, p = {p:.2g}): not noise."]
    return [f"No change of the mean score detected: {from_to} ({change})."]


def _answers(variant: Variant) -> list[str]:
    """Extracted answers, and choices whose log-probabilities both engines computed."""
    sentences = []
    if found := _measured(variant, "flip_rate"):
        flips, interval = variant.counts.get("flips", 0), format_interval("flip_rate", found[0])
        sentences.append(f"{flips} of {counted(found[0].n, 'extracted answer')} changed {interval}.")
    if found := _measured(variant, "logprob_shift"):
        shift = f"{format_value('logprob_shift', found[0].value)} nats"
        sentences.append(f"The log-probabilities of choices or documents moved by {shift} on average.")
    return sentences


def _texts(variant: Variant) -> list[str]:
    found, counts = _measured(variant, "match_rate"), variant.counts
    if found is None:
        return []
    n, diverged = found[0].n, counts.get("diverged", 0)
    if not diverged:
        return [f"All {n} texts are the same."] if not counts.get("failed") else []
    text, near = f"{diverged} of {counted(n, 'text')} differ", counts.get("near_ties")
    if near is None:
        return [f"{text}. An engine returns no top_logprobs, so whether rounding alone explains that is unknown."]
    if near == diverged:
        return [f"{text}, all of them first at a near-tie of the two best tokens: rounding alone explains that."]
    if not near:
        return [f"{text}, none of them first at a near-tie of the two best tokens: rounding alone does not explain that."]
    clear = diverged - near
    return [f"{text}: {near} first at a near-tie, which rounding alone explains, and {clear} where the choice was clear."]


def _distributions(variant: Variant) -> list[str]:
    sentences = []
    if found := _measured(variant, "kl_mean", "top1_agreement"):
        kl, same = found
        mean = f"{format_value('kl_mean', kl.value)} nats {format_interval('kl_mean', kl)}".rstrip()
        texts = counted(variant.counts.get("forced_texts", 0), "text")
        agreement = format_value("top1_agreement", same.value)
        if not kl.value and same.value == 1.0:
            sentences.append(f"After the same tokens both engines compute the same distributions, on {texts}.")
        else:
            sentences.append(
                f"After the same tokens the KL divergence is {mean}; {agreement} of the top tokens are the same."
            )
    for name in RATIOS:
        if found := _measured(variant, name):
            sentences += _perplexity(variant, name, found[0])
    return sentences


def _perplexity(variant: Variant, name: str, ratio: Estimate) -> list[str]:
    p, corrected = (one.get(name, math.nan) for one in (variant.p_values, corrected_tests(variant)))
    if not corrected < SIGNIFICANT or ratio.value == 1.0:
        return []
    change = f"{'rose' if ratio.value > 1 else 'fell'} by {abs(ratio.value - 1):.2%}".replace("%", " %")
    if name == "word_ppl_ratio":
        return [f"Perplexity per word {change} (p = {p:.2g})."]
    own = " The baseline prefers its own answers, so that shows a difference and not a loss."
    return [f"Perplexity on the same tokens {change} (p = {p:.2g}).{own if 'forced_texts' in variant.counts else ''}"]


def _reach(check: Check, variant: Variant) -> list[str]:
    """What so many samples cannot show, and how many would."""
    found = _measured(variant, "acc_drop")
    if found is None:
        documents = any(name in variant.metrics for name in RATIOS) and "forced_texts" not in variant.counts
        if documents or variant.inconclusive or "acc_drop" in variant.metrics or "score_drop" in variant.metrics:
            return []
        return ["These samples have no gold answers, so they cannot show whether accuracy changed: use --tasks."]
    n, level = found[0].n, strictest_level(variant)
    if within_margin(found[0]) or corrected_tests(variant).get("acc_drop", math.nan) < SIGNIFICANT:
        return []
    gains = (variant.counts.get("improvements", 0) + 0.5) / (n + 2)  # few samples without a gain do not show that none is
    loss = detectable_loss(n, gains, level)
    if loss is not None and loss <= WANTED:
        return [f"With {counted(n, 'sample')} a drop of {_points(loss)} would be found."]
    right = _measured(variant, "acc_baseline")
    if loss is None or (right is not None and loss > right[0].value):
        unseen = f"With {counted(n, 'sample')} even the loss of all right answers could go unseen"
    else:
        chance = f"McNemar's test at {100 * level:.2g} %, found in {100 * POWER:.0f} % of cases"
        unseen = f"With {counted(n, 'sample')} a drop below {_points(loss)} could go unseen ({chance})"
    return [f"{unseen}: {_suggestion(check, needed_samples(WANTED, gains, level))}."]


def _points(loss: float) -> str:
    points = 100 * loss
    return f"{points:.0f} points" if points >= 9.5 else f"{points:.1f} points"


def _suggestion(check: Check, needed: int) -> str:
    """Options that give more samples: a larger limit, or a larger task where all samples of these were used. With few
    samples the estimate of how many change is rough, so the number is rounded and bounded."""
    digits = 10 ** max(1, len(str(needed)) - 2)
    size = min(MOST_SAMPLES, math.ceil(needed / digits) * digits)
    purpose = f"to find one of {100 * WANTED:.0f} points"
    limit = check.settings.get("limit")
    larger = isinstance(limit, int) and not set(check.tasks) & set(SUITES)
    tasks = "" if larger else f"--tasks {LARGE_TASK} "
    return f"{purpose} use {tasks}--limit {math.ceil(size / max(1, len(check.tasks))) if larger else size}"
