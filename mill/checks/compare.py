"""`compare`, `sweep` and `diff`: one baseline, and every other model against it on the same samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mill.api.errors import RunError
from mill.api.response import Token
from mill.api.task import Task
from mill.checks.answers import Answer, read_answers
from mill.checks.figures import forced_figures, forced_series, free_figures, group_figures
from mill.checks.forced import NAME, ForcedGaps, forced_texts, read_gaps, rivals_of
from mill.checks.pairing import Pair, pair_up
from mill.checks.result import Check, Variant
from mill.checks.shown import around, shown
from mill.checks.subjects import Answered, Asked, Subject, answer
from mill.metrics.paired import percentile
from mill.runs.folder import RunFolder
from mill.runs.manifest import shown_settings
from mill.tasks.forced import ForcedTask, ForcedText

TOKENS_AROUND = 3


def compare(command: str, subjects: Sequence[Subject], asked: Asked, *, forced_tokens: int) -> Check:
    """The first subject is the baseline. Each model is loaded once: its own answers, then the baseline's as forced texts."""
    runs = [subject.plan(asked) for subject in subjects]  # refused here, before anything is loaded
    rivals = rivals_of([subject.model for subject in subjects]) if forced_tokens else None
    free: list[Answered] = []
    forced: list[Answered] = []
    texts: list[ForcedText] = []
    for place, (subject, run) in enumerate(zip(subjects, runs, strict=True)):
        free.append(answer(subject, run, asked, keep_model=rivals is not None))
        if rivals is None:
            continue
        if not place:
            texts = forced_texts(free[0], forced_tokens)
        if texts:
            again = subject.plan_apart(asked, NAME, [ForcedTask(NAME, texts, rivals[place])])
            forced.append(answer(subject, again, asked))
        subject.model.clean()
    baseline = free[0].answers
    variants = []
    for place, candidate in enumerate(free[1:], 1):
        gaps = read_gaps(forced[0], forced[place]) if forced else None
        variant = compared(candidate.subject.label, baseline, candidate.answers, gaps)
        variant.notes += _why_not_forced(subjects[0], candidate.subject, forced_tokens, texts, gaps)
        variant.notes += candidate.remarks()
        variants.append(_described(variant, candidate))
    notes = [f"{plan.task.name}: {note}" for plan in runs[0].plans for note in plan.task.notes()]
    notes += [f"{subjects[0].label}: {remark}" for remark in free[0].remarks()] + _templates(subjects, asked)
    settings = {**shown_settings(asked.settings), "limit": asked.limit, "forced_tokens": forced_tokens}
    return Check(command, asked.tasks, variants, subjects[0].label, settings, notes)


def compare_runs(
    first: Path, second: Path, make_task: Callable[[str], Task], given: Sequence[str | None] = (None, None)
) -> Check:
    """Two recorded runs, without their models: what they have in common is compared. `given` are their labels, if any."""
    folders = [RunFolder(first), RunFolder(second)]
    answers = [read_answers(folder, make_task) for folder in folders]
    labels = [label or _run_label(folder) for label, folder in zip(given, folders, strict=True)]
    if labels[0] == labels[1]:
        labels = [f"{label} {sign}" for label, sign in zip(labels, "AB", strict=True)]
    variant = compared(labels[1], answers[0], answers[1], None)
    variant.run = str(second)
    if not variant.counts["samples"]:
        raise RunError(f"{first} and {second} have no sample in common: they are of other tasks")
    variant.notes.append("recorded runs: no text was scored by both, so there are no divergences of distributions")
    tasks = sorted({one.task for one in answers[0]} & {one.task for one in answers[1]})
    return Check("compare", tasks, [variant], labels[0], {"runs": [str(first), str(second)]})


def _run_label(folder: RunFolder) -> str:
    return str(folder.manifest()["model"]["name"]).rstrip("/").rpartition("/")[2]


def compared(label: str, baseline: Sequence[Answer], candidate: Sequence[Answer], gaps: ForcedGaps | None) -> Variant:
    """All that two runs' answers tell."""
    pairs, alone = pair_up(baseline, candidate)
    figures = free_figures(pairs)
    series: dict[str, Any] = {}
    if gaps is not None and gaps.texts:
        figures.add(forced_figures(list(gaps.texts.values())))
        series = forced_series(list(gaps.texts.values()))
    notes = [f"{alone} samples are in one run only and are left out"] if alone else []
    return Variant(
        label,
        figures=figures.estimates,
        p_values=figures.p_values,
        counts=figures.counts,
        groups=group_figures(pairs),
        series=series,
        rows=[row_of(pair, gaps) for pair in pairs],
        notes=notes,
    )


def _templates(subjects: Sequence[Subject], asked: Asked) -> list[str]:
    """A template on one side alone makes other prompts of the same ones."""
    chat = asked.settings.apply_chat_template
    through = [subject.label for subject in subjects if chat or subject.model.use_chat_template]
    if not through or len(through) == len(subjects):
        return []
    return [f"only {' and '.join(through)} sent the prompts through a chat template: the others saw other prompts"]


def _described(variant: Variant, candidate: Answered) -> Variant:
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
        silent = [s.label for s in (baseline, candidate) if s.model.capabilities.rivals == 0]
        if silent:
            return [f"no KL: {' and '.join(silent)} give no log-probabilities of a given text"]
        return ["no KL: the baseline gave no answer that could be scored"] if not texts else []
    found = []
    if gaps.other_tokens:
        found.append(f"{gaps.other_tokens} of {len(texts)} texts are other tokens to the two engines and have no KL")
    if gaps.failed:
        found.append(f"{gaps.failed} of {len(texts)} texts could not be scored by both and have no KL: {gaps.error}")
    if gaps.texts and not gaps.exact:
        found.append("KL is a lower bound: an engine names only its likeliest tokens, the others count as one")
    bad = sum(gap.kl != gap.kl for gaps_of_text in gaps.texts.values() for gap in gaps_of_text)
    return [*found, f"{bad} places have NaN log-probabilities"] if bad else found


def row_of(pair: Pair, gaps: ForcedGaps | None) -> dict[str, Any]:
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
        "right": [a.right, b.right],
        "errors": [a.error, b.error],
        "severity": pair.severity,
        "similarity": pair.similarity,
        "flipped": pair.flipped,
    }
    row["texts"], cut = around(row["texts"], pair.parting.char if pair.parting else 0)
    if pair.parting is not None:
        row["parting"] = {**asdict(pair.parting), "char": pair.parting.char - cut}
        if a.tokens and b.tokens and pair.parting.token is not None:
            row["parting"]["tokens"] = [_rivals(a.tokens, pair.parting.token), _rivals(b.tokens, pair.parting.token)]
    of_text = gaps.texts.get(f"{a.task}/{a.id}") if gaps else None
    if of_text:
        values = [gap.kl for gap in of_text]
        row["kl"] = {"mean": sum(values) / len(values), "max": max(values), "median": percentile(values, 0.5)}
        row["kl_places"] = values
    return row


def _rivals(tokens: Sequence[Token], place: int) -> dict[str, Any] | None:
    """The token at a place, and the likeliest there with their probabilities."""
    if place >= len(tokens):
        return None
    return {"text": tokens[place].text, "logprob": tokens[place].logprob, "top": list(tokens[place].top[:TOKENS_AROUND])}
