"""`compare`, `sweep` and `diff`: one baseline, and every other model against it on the same samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mill.api.errors import RunError
from mill.api.response import Token
from mill.api.task import Task
from mill.checks.answers import read_answers
from mill.checks.forced import NAME, ForcedGaps, forced_texts, read_gaps, top_logprobs_of
from mill.checks.glossary import counted
from mill.checks.measurements import (
    AGAINST,
    FORCED,
    answer_measurements,
    forced_measurements,
    forced_series,
    group_measurements,
)
from mill.checks.pairing import AnswerPair, Pairing, pair_up
from mill.checks.result import Check, Variant
from mill.checks.excerpts import around, shown
from mill.checks.subjects import CheckConfig, CompletedRun, Subject, answer, with_template
from mill.checks.verdict import verdict
from mill.checks.warnings import answer_warnings
from mill.metrics.paired import largest, mean_of, percentile, rate
from mill.runs.folder import RunFolder
from mill.runs.manifest import shown_settings
from mill.tasks.forced import ForcedTask, ForcedText
from mill.tasks.suite import ANSWERED

TOKENS_AROUND = 3


def compare(command: str, subjects: Sequence[Subject], asked: CheckConfig, *, forced_tokens: int) -> Check:
    """The first subject is the baseline. Each model is loaded once: its own answers, then the baseline's as forced texts."""
    asked = with_template(asked, subjects)
    runs = [subject.plan(asked) for subject in subjects]  # refused here, before anything is loaded
    top_logprobs = top_logprobs_of([subject.model for subject in subjects]) if forced_tokens else None
    free: list[CompletedRun] = []
    forced: dict[int, CompletedRun] = {}
    texts: list[ForcedText] = []
    for place, (subject, run) in enumerate(zip(subjects, runs, strict=True)):
        free.append(answer(subject, run, asked, keep_model=top_logprobs is not None))
        if top_logprobs is None:
            continue
        if not place:
            able = [subject for subject, count in zip(subjects, top_logprobs, strict=True) if count]
            dialogs = all(subject.model.capabilities.scores_dialogs for subject in able)
            texts = forced_texts(free[0], forced_tokens, dialogs=dialogs)
        if texts and top_logprobs[place]:
            again = subject.plan_check_run(asked, NAME, [ForcedTask(NAME, texts, top_logprobs[place])])
            forced[place] = answer(subject, again, asked)
        subject.model.clean()
    baseline = free[0].answers
    variants = []
    for place, candidate in enumerate(free[1:], 1):
        gaps = read_gaps(forced[0], forced[place]) if 0 in forced and place in forced else None
        variant = compared(candidate.subject.label, pair_up(baseline, candidate.answers), gaps, chat=bool(asked.chat))
        variant.warnings += _why_not_forced(subjects[0], candidate.subject, forced_tokens, texts, gaps)
        variant.warnings += candidate.warnings()
        variants.append(_described(variant, candidate))
    warnings = [
        f"{plan.task.name}: {warning}"
        for plan in runs[0].plans
        for warning in [*plan.task.warnings(), *_not_compared(plan.task)]
    ]
    warnings += [f"{subjects[0].label}: {warning}" for warning in free[0].warnings()] + _templates(subjects, asked)
    settings = {**shown_settings(asked.settings), "limit": asked.limit, "forced_tokens": forced_tokens}
    return Check(command, asked.tasks, variants, subjects[0].label, settings, warnings)


def _not_compared(task: Task) -> list[str]:
    """A check compares the first metric of a task; whoever needs another must know."""
    first, *others = [name for name in task.metrics if name != ANSWERED] or [""]
    return [f"compared by {first}, not by {', '.join(others)}"] if others else []


def compare_runs(
    first: Path, second: Path, make_task: Callable[[str], Task], given: Sequence[str | None] = (None, None)
) -> Check:
    """Two recorded runs, without their models: what they have in common is compared. `given` are their labels, if any."""
    folders = [RunFolder(first), RunFolder(second)]
    answers = [read_answers(folder, make_task) for folder in folders]
    labels = [label or _run_label(folder) for label, folder in zip(given, folders, strict=True)]
    if labels[0] == labels[1]:
        labels = [f"{label} {sign}" for label, sign in zip(labels, "AB", strict=True)]
    pairing = pair_up(answers[0], answers[1])
    if not pairing.pairs:
        why = "the same tasks, but of other data" if pairing.other_data else "they are of other tasks"
        raise RunError(f"{first} and {second} have no sample in common: {why}")
    variant = compared(labels[1], pairing, None)
    variant.run = str(second)
    variant.warnings.append("recorded runs: no text was scored by both, so there are no divergences of distributions")
    tasks = sorted({one.task for one in answers[0]} & {one.task for one in answers[1]})
    return Check("compare", tasks, [variant], labels[0], {"runs": [str(first), str(second)]})


def _run_label(folder: RunFolder) -> str:
    return str(folder.manifest()["model"]["name"]).rstrip("/").rpartition("/")[2]


def compared(label: str, pairing: Pairing, gaps: ForcedGaps | None, *, chat: bool = False) -> Variant:
    """All that two runs' answers tell."""
    pairs = pairing.pairs
    metrics = answer_measurements(pairs)
    variant = Variant(label, groups=group_measurements(pairs), rows=[row_of(pair, gaps) for pair in pairs])
    if gaps is not None:
        texts = list(gaps.texts.values())
        metrics.estimates["unscored_rate"] = rate(gaps.failed + gaps.other_tokens, gaps.asked)
        if texts:
            metrics.add(forced_measurements(texts))
            variant.series = forced_series(texts)
        _say_what_is_missing(variant, gaps)
    variant.unmeasured |= baseline_failures(pairs)
    metrics.estimates["unpaired_rate"] = rate(pairing.alone, pairing.alone + len(pairs))
    variant.metrics, variant.p_values, variant.counts = metrics.estimates, metrics.p_values, metrics.counts
    variant.warnings = [*_unpaired(pairing), *answer_warnings(metrics.counts, chat=chat)]
    variant.verdict = verdict(variant)
    return variant


def baseline_failures(pairs: Sequence[AnswerPair]) -> dict[str, str]:
    """What cannot be measured where the baseline failed: against nothing, whatever the candidate answers looks good."""
    failed = sum(pair.a.error is not None for pair in pairs)
    return dict.fromkeys(AGAINST, f"the baseline failed on {failed} of {len(pairs)} samples") if failed else {}


def _say_what_is_missing(variant: Variant, gaps: ForcedGaps) -> None:
    """Texts that an engine could not score are a fault of it; texts that are other tokens to it are only left out."""
    for name in FORCED:
        if gaps.failed:
            variant.unmeasured[name] = f"{gaps.failed} of {gaps.asked} texts could not be scored by both: {gaps.error}"
        elif gaps.other_tokens:
            variant.partial[name] = f"{gaps.other_tokens} of {gaps.asked} texts are other tokens to the two engines"


def _unpaired(pairing: Pairing) -> list[str]:
    found = []
    if pairing.other_data:
        found.append(f"{pairing.other_data} samples have the same id but other data in the two runs and are left out")
    only = pairing.alone - 2 * pairing.other_data
    if only > 0:
        found.append(f"{only} samples are in one run only and are left out")
    if pairing.other_prompts:
        found.append(f"{pairing.other_prompts} of {len(pairing.pairs)} prompts differ: the runs have other settings")
    return found


def _templates(subjects: Sequence[Subject], asked: CheckConfig) -> list[str]:
    """A template on one side alone makes other prompts of the same ones."""
    chat = asked.settings.apply_chat_template
    through = [subject.label for subject in subjects if chat or subject.model.use_chat_template]
    if not through or len(through) == len(subjects):
        return []
    return [f"only {' and '.join(through)} sent the prompts through a chat template: the others saw other prompts"]


def _described(variant: Variant, candidate: CompletedRun) -> Variant:
    variant.model, variant.backend = candidate.subject.model.model_name, candidate.subject.spec.backend
    variant.run, variant.size = str(candidate.run.folder.path), candidate.subject.model.weight_bytes()
    return variant


def _why_not_forced(
    baseline: Subject, candidate: Subject, wanted: int, texts: Sequence[ForcedText], gaps: ForcedGaps | None
) -> list[str]:
    """What a reader must know about divergences of distributions: why there are none, or what they rest on."""
    if not wanted:
        return []
    if gaps is None:
        silent = [s.label for s in (baseline, candidate) if s.model.capabilities.top_logprobs == 0]
        if silent:
            return [f"no KL: no log-probabilities of a given text from {' and '.join(silent)}"]
        return ["no KL: the baseline gave no answer that could be scored"] if not texts else []
    found = []
    if gaps.other_tokens:
        found.append(f"{gaps.other_tokens} of {len(texts)} texts are other tokens to the two engines and have no KL")
    if gaps.failed:
        found.append(f"{gaps.failed} of {len(texts)} texts could not be scored by both and have no KL: {gaps.error}")
    if any(text.plain for text in texts):
        found.append("KL is of prompts as plain text: an engine scores no dialogs, so the chat template was left out there")
    if gaps.texts and not gaps.exact:
        found.append("KL is a lower bound: an engine names only its likeliest tokens, the others count as one")
    bad = sum(not math.isfinite(gap.kl) for gaps_of_text in gaps.texts.values() for gap in gaps_of_text)
    return (
        [*found, f"{counted(bad, 'position')} of {gaps.positions} NaN or infinite: they are part of every figure"]
        if bad
        else found
    )


def row_of(pair: AnswerPair, gaps: ForcedGaps | None) -> dict[str, Any]:
    """One sample as reports show it."""
    a, b = pair.a, pair.b
    row: dict[str, Any] = {
        "task": a.task,
        "id": a.id,
        "category": a.category,
        "prompt": shown(a.prompt),
        "gold": a.gold,
        "texts": [a.text, b.text],
        "extracted": [a.extracted, b.extracted],
        "right": list(pair.right),
        "errors": [a.error, b.error],
        "severity": pair.severity,
        "similarity": pair.similarity,
        "flipped": pair.flipped,
    }
    row["texts"], cut = around(row["texts"], pair.divergence.char if pair.divergence else 0)
    if pair.divergence is not None:
        row["divergence"] = {**asdict(pair.divergence), "char": pair.divergence.char - cut}
        if a.tokens and b.tokens and pair.divergence.token is not None:
            row["divergence"]["tokens"] = [
                _top_logprobs(a.tokens, pair.divergence.token),
                _top_logprobs(b.tokens, pair.divergence.token),
            ]
    of_text = gaps.texts.get(f"{a.task}/{a.id}") if gaps else None
    if of_text:
        values = [gap.kl for gap in of_text]
        row["kl"] = {"mean": mean_of(values).value, "max": largest(values), "median": percentile(values, 0.5)}
        row["kl_positions"] = values
    return row


def _top_logprobs(tokens: Sequence[Token], place: int) -> dict[str, Any] | None:
    """The token at a place, and the likeliest there with their probabilities."""
    if place >= len(tokens):
        return None
    return {"text": tokens[place].text, "logprob": tokens[place].logprob, "top": list(tokens[place].top[:TOKENS_AROUND])}
