"""`compare`, `sweep` and `diff`: every model against one baseline, on the same samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from mill.api.errors import RunError, SpecError, UnknownName
from mill.api.model import HasWeights
from mill.api.response import Token
from mill.api.task import Task
from mill.checks.answers import Answer, answer_warnings, read_answers, truncation_warnings
from mill.checks.decide import add_decision, answer_until_decided
from mill.checks.forced import NAME, ForcedGaps, forced_texts, read_gaps, top_logprobs_of
from mill.checks.glossary import AGAINST, GROUPS, METRICS, counted
from mill.checks.kinds import Chart, CheckKind, Given
from mill.checks.measurements import (
    FORCED,
    forced_series,
    group_measurements,
    measure_answers,
    measure_forced,
)
from mill.checks.pairing import AnswerPair, Pairs, excerpt, excerpts_around, pair
from mill.checks.result import Check, Variant
from mill.checks.subjects import CheckConfig, CompletedRun, Subject, execute, labelled, open_subjects, with_template
from mill.checks.verdict import verdict
from mill.metrics.estimate import mean_of
from mill.metrics.finite_population import corrected
from mill.metrics.paired import largest, percentile, rate
from mill.models.spec.parse import Spec, backend_name, make_spec, split_list
from mill.options.option import hints
from mill.plan.sampling import describe_choice
from mill.store.folder import MANIFEST, RunFolder
from mill.store.schema import Decision, TaskEntry
from mill.store.session import read_entries
from mill.tasks.suite import ANSWERED, ForcedTask, ForcedText

ROW_TOP_LOGPROBS = 3  # of the token at a divergence
ROW_CHOICES, CHOICE_CHARS = 26, 300  # of a sample, and of one of its choices


_OTHER_CHECKS = {*GROUPS["load"], *GROUPS["repeats"]}


class CompareOptions(msgspec.Struct, kw_only=True, frozen=True):
    a: Annotated[str | None, Meta(extra=hints(positional=True))] = None
    b: Annotated[str | None, Meta(extra=hints(positional=True))] = None
    runs: Annotated[list[str] | None, Meta(description="Two recorded runs instead of models.", extra=hints(paths=2))] = None
    label_a: Annotated[str | None, Meta(description="Name of A in tables.")] = None
    label_b: Annotated[str | None, Meta(description="Name of B in tables.")] = None


class Compare(CheckKind):
    """Compare model B with model A, the baseline, on prompts or tasks. Prompts go through the chat template where both
    models have one; --no_chat sends plain text to completions, so that templates make no difference.

    The exit code is 0, 1 when requests failed, 2 when the input is refused, 3 when a rule is broken, 5 when the samples
    are too few to decide.
    """

    name = "compare"
    examples = """
\b
Examples:
  mill compare mlx-community/Llama-3.1-8B-Instruct-bf16 mlx-community/Llama-3.1-8B-Instruct-4bit
  mill compare ollama:llama3.1:8b-instruct-q4_K_M ollama:llama3.1:8b-instruct-q8_0 --prompts reasoning
  mill compare org/base org/tuned --tasks mmlu,gsm8k --require "acc_drop<0.01"
  mill compare org/base org/tuned --tasks mmlu --decide "acc_drop>0.01"
  mill compare --runs results/a-1234/default results/b-5678/default
"""
    takes: ClassVar[tuple[str, ...]] = ("base_url", "decide", "alpha", "forced_tokens")
    metrics = frozenset(METRICS) - _OTHER_CHECKS - {"retry_rate"}
    charts = (
        Chart("curves", ("kl_mean", "flip_rate", "acc_drop")),
        Chart("kl_distribution"),
        Chart("agreement"),
        Chart("categories", ("flip_rate",)),
        Chart("categories", ("match_rate",)),
        Chart("heat"),
    )
    Options: ClassVar[type[msgspec.Struct]] = CompareOptions

    def make(self, given: Given) -> Check:
        a, b, runs, labels = given.own.a, given.own.b, given.own.runs, [given.own.label_a, given.own.label_b]
        if runs:
            if a or b:
                raise SpecError("give two models, or --runs with two recorded runs, not both")
            unused = [name for name in given.typed if name not in _FOR_RUNS]
            if unused:  # it would be ignored
                raise SpecError(
                    f"--{unused[0]} is about requests to a model, and --runs compares recorded ones: leave it out"
                )
            return compare_runs(Path(runs[0]), Path(runs[1]), labels)
        if not a or not b:
            raise SpecError("give two models: mill compare A B, or two recorded runs: mill compare --runs A B")
        specs = [make_spec(model, base_url=given.options.base_url or "", if_served=True) for model in (a, b)]
        return _compared(self, specs, labels, given)


_FOR_RUNS = ("runs", "label_a", "label_b", "task_paths", "output_dir", "fail_on", "require", "strict", "report", "quiet")


def _compared(kind: CheckKind, specs: Sequence[Spec], labels: Sequence[str | None], given: Given) -> Check:
    subjects = open_subjects(labelled(specs, labels), given.config)
    return compare(kind.name, subjects, given.config, forced_tokens=given.options.forced_tokens)


class SweepOptions(msgspec.Struct, kw_only=True, frozen=True):
    models: Annotated[str, Meta(description='Labelled models: "bf16=org/a,4bit=org/b".')]
    baseline: Annotated[str | None, Meta(description="Label of the baseline.", extra=hints(default="the first"))] = None
    backend: Annotated[
        str | None, Meta(description="Backend of all models.", extra=hints(default="detected from each spec"))
    ] = None


class Sweep(Compare):
    """Compare every model with the baseline, on prompts or tasks; prompts go through the chat template where all models
    have one."""

    name = "sweep"
    examples = """
\b
Examples:
  mill sweep --models "bf16=org/model,8bit=mlx-community/model-8bit,4bit=mlx-community/model-4bit" --baseline bf16
  mill sweep --models "f16=hf[path=./m,dtype=float16],f32=hf[path=./m,dtype=float32]" --baseline f32 --tasks mmlu_anatomy
"""
    takes = ("base_url", "forced_tokens")
    Options: ClassVar[type[msgspec.Struct]] = SweepOptions

    def make(self, given: Given) -> Check:
        own = given.own
        parts = [_labelled(part) for part in split_list(own.models)]
        if len(parts) < 2:
            raise SpecError(f"--models {own.models!r}: a sweep needs at least two models")
        address = given.options.base_url or ""
        specs = [make_spec(model, backend=own.backend or "", base_url=address) for _, model in parts]
        named = labelled(specs, [label for label, _ in parts])
        labels = [label for label, _ in named]
        baseline = own.baseline or labels[0]
        if baseline not in labels:
            raise UnknownName("baseline", baseline, labels, hint=f"labels are {', '.join(labels)}")
        named.sort(key=lambda pair: pair[0] != baseline)  # the baseline first, the others as given
        return _compared(self, [spec for _, spec in named], [label for label, _ in named], given)


def _labelled(text: str) -> tuple[str | None, str]:
    """`label=model`; an equals sign inside brackets belongs to the model's arguments."""
    label, equals, model = text.partition("=")
    if not equals or "[" in label or "/" in label:
        return None, text
    if not label.strip() or not model.strip():
        raise SpecError(f"--models: {text!r} is not label=model")
    return label.strip(), model.strip()


class DiffOptions(msgspec.Struct, kw_only=True, frozen=True):
    model: Annotated[str, Meta(description="The model, by the name that every backend uses.")]
    backends: Annotated[
        str,
        Meta(
            description="Comma-separated, where needed with arguments in brackets or an address: "
            "openai-compat=http://host:8000/v1. The first is the baseline."
        ),
    ]
    base_urls: Annotated[str | None, Meta(description="Server addresses, in the order of --backends; empty for none.")] = (
        None
    )


class Diff(Compare):
    """Does another engine give the same answers? The first backend is the baseline."""

    name = "diff"
    examples = """
\b
Examples:
  mill diff --model mlx-community/Meta-Llama-3.1-8B-Instruct-4bit \\
    --backends "mlx-lm,vllm-mlx" --base_urls ",http://127.0.0.1:8000" --prompts reasoning
  mill diff --model ./model --backends hf,vllm --no_chat --tasks gsm8k --limit 50
  mill diff --model ./model --backends "hf[dtype=float32],hf[dtype=bfloat16]" --prompts numerics
"""
    prompts, chat, takes = "reasoning", True, ("forced_tokens",)
    Options: ClassVar[type[msgspec.Struct]] = DiffOptions

    def make(self, given: Given) -> Check:
        own, names = given.own, split_list(given.own.backends)
        if len(names) < 2:
            raise SpecError(f"--backends {own.backends!r}: at least two are needed")
        urls = [part.strip() for part in (own.base_urls or "").split(",")]
        if own.base_urls is not None and len(urls) != len(names):
            raise SpecError(f"--base_urls has {len(urls)} entries for {len(names)} backends; leave one empty for none")
        urls += [""] * (len(names) - len(urls))
        sides = [_at_address(name, url) for name, url in zip(names, urls, strict=True)]
        specs = [make_spec(own.model, backend=name, base_url=url) for name, url in sides]
        if len(set(sides)) < len(sides):
            raise SpecError(f"--backends {own.backends}: one of them is listed twice with the same address")
        short = [backend_name(name) for name, _ in sides]
        return _compared(self, specs, [name if short.count(name) == 1 else None for name in short], given)


def _at_address(name: str, url: str) -> tuple[str, str]:
    """A backend, which may be written with its address: `openai-compat=http://host:8000/v1`."""
    backend, equals, address = name.partition("=")
    if not equals or "[" in backend:
        return name, url
    if url:
        raise SpecError(f"--backends and --base_urls both give {backend} an address")
    return backend.strip(), address.strip()


def compare(command: str, subjects: Sequence[Subject], config: CheckConfig, *, forced_tokens: int) -> Check:
    """The first subject is the baseline. Each model is loaded once: it generates its answers, then scores the baseline's."""
    config = with_template(config, subjects)
    plans = [subject.plan(config) for subject in subjects]  # raises before any model is loaded
    forced_tokens = 0 if config.decide is not None else forced_tokens
    top_logprobs = top_logprobs_of([subject.model for subject in subjects]) if forced_tokens else None
    if top_logprobs is not None:  # texts are scored after the same prompts
        same = [_same_prompts(subjects[0], subject, config) for subject in subjects]
        top_logprobs = [count if alike else 0 for count, alike in zip(top_logprobs, same, strict=True)]
    free: list[CompletedRun] = []
    forced: dict[int, CompletedRun] = {}
    texts: list[ForcedText] = []
    decision: Decision | None = None
    if config.decide is not None:
        free, decision = answer_until_decided(subjects, plans, config)
    for index, (subject, plan) in enumerate(zip(subjects, plans, strict=True) if decision is None else ()):
        free.append(execute(subject, plan, config, keep_model=top_logprobs is not None))
        if top_logprobs is None:
            continue
        if index == 0:
            scoring = [subject for subject, count in zip(subjects, top_logprobs, strict=True) if count]
            dialogs = all(subject.model.capabilities.scores_dialogs for subject in scoring)
            texts = forced_texts(free[0], forced_tokens, dialogs=dialogs)
        if texts and top_logprobs[index]:
            scored = subject.plan_check_run(config, NAME, [ForcedTask(NAME, texts, top_logprobs[index])])
            forced[index] = execute(subject, scored, config)
        subject.model.clean()
    baseline = free[0].answers
    variants = []
    for index, candidate in enumerate(free[1:], 1):
        gaps = read_gaps(forced[0], forced[index]) if 0 in forced and index in forced else None
        variant = compared(candidate.subject.label, pair(baseline, candidate.answers), gaps, chat=bool(config.run.chat))
        if forced_tokens and not _same_prompts(subjects[0], candidate.subject, config):
            variant.warnings.append("no KL: only one of the two models applied a chat template, so their prompts differ")
        else:
            variant.warnings += _forced_warnings(subjects[0], candidate.subject, forced_tokens, texts, gaps)
        variant.warnings += candidate.warnings()
        if decision is not None:
            add_decision(variant, decision)
        elif config.run.samples.sample is not None:
            _correct(variant, sum(task.total for task in plans[0].tasks))
        model = candidate.subject.model
        variant.model, variant.backend = model.model_name, candidate.subject.spec.backend
        variant.run, variant.answered = str(candidate.plan.folder.path), candidate.outcome.answered
        variant.size = model.weight_bytes() if isinstance(model, HasWeights) else None
        variants.append(variant)
    warnings = [
        f"{one.task.name}: {warning}"
        for one in free[0].tasks
        for warning in [*one.task_warnings, *one.sampled_part(), *_ignored_metrics(one.task, free[0])]
    ]
    warnings += [f"{subjects[0].label}: {warning}" for warning in free[0].warnings()] + _template_warnings(subjects, config)
    settings = {**config.shown, "forced_tokens": forced_tokens}
    check = Check(command, config.tasks, variants, subjects[0].label, settings, warnings)
    check.baseline_model, check.baseline_backend = subjects[0].model.model_name, subjects[0].spec.backend
    check.baseline_run, check.baseline_answered = str(plans[0].folder.path), free[0].outcome.answered
    return check


def _sampled_parts(folder: RunFolder, tasks: Sequence[str]) -> list[str]:
    """Which part of the data a recorded run has of each task, where it is not all."""
    entries = read_entries(folder, MANIFEST, "tasks", TaskEntry)
    parts = {
        name: describe_choice(one.sampled, one.n, one.total) for name, one in entries.items() if one.sampled is not None
    }
    return [f"{name}: {parts[name]}" for name in tasks if parts.get(name)]


def _correct(variant: Variant, total: int) -> None:
    """Intervals about all samples, of which a random part was compared. Those over tokens of texts stay as they are."""
    over_samples = {name for name, one in variant.metrics.items() if one.n <= total} - {*FORCED, "unscored_rate"}
    variant.metrics = {name: corrected(one, total) if name in over_samples else one for name, one in variant.metrics.items()}
    variant.verdict = verdict(variant)


def _ignored_metrics(task: Task, run: CompletedRun) -> list[str]:
    """A check compares one metric of a task: report the others."""
    found = next((one.metrics for one in run.outcome.tasks if one.task == task.name), {})
    compared = next((answer.metric for answer in run.answers if answer.task == task.name and answer.metric), "")
    others = [name for name in [*task.metrics] or [*found] if name not in (ANSWERED, compared)]
    if not others:
        return []
    return [f"compared by {compared}, not by {', '.join(others)}" if compared else f"not compared by {', '.join(others)}"]


def compare_runs(first: Path, second: Path, given: Sequence[str | None] = (None, None)) -> Check:
    """Compare the samples that two recorded runs share, without their models. `given` are their labels, if any."""
    folders = [RunFolder(first), RunFolder(second)]
    answers = [read_answers(folder) for folder in folders]
    models = [folder.manifest()["model"] for folder in folders]
    labels = [label or str(model["name"]).rstrip("/").rpartition("/")[2] for label, model in zip(given, models, strict=True)]
    if labels[0] == labels[1]:
        labels = [f"{label} {suffix}" for label, suffix in zip(labels, "AB", strict=True)]
    found = pair(answers[0], answers[1])
    if not found.pairs:
        why = "same tasks, but different data" if found.different_data else "different tasks"
        raise RunError(f"{first} and {second} have no sample in common: {why}")
    variant = compared(labels[1], found, None)
    variant.run, variant.model, variant.backend = str(second), models[1]["name"], models[1].get("backend", "")
    variant.warnings.append("recorded runs: no text was scored by both models, so there is no KL")
    for label, side in zip(labels, answers, strict=True):
        variant.warnings += [f"{label}: {warning}" for warning in truncation_warnings(side)]
    tasks = sorted({answer.task for answer in answers[0]} & {answer.task for answer in answers[1]})
    warnings = [line for folder in folders for line in _sampled_parts(folder, tasks)]
    settings = {"runs": [str(first), str(second)]}
    check = Check("compare", tasks, [variant], labels[0], settings, [*dict.fromkeys(warnings)], baseline_run=str(first))
    check.baseline_model, check.baseline_backend = models[0]["name"], models[0].get("backend", "")
    return check


def compared(label: str, found: Pairs[Answer], gaps: ForcedGaps | None, *, chat: bool = False) -> Variant:
    """All measurements of a candidate's answers against the baseline's."""
    pairs = [AnswerPair(a, b) for a, b in found.pairs]
    variant = Variant(label, groups=group_measurements(pairs), rows=[row_of(pair, gaps) for pair in pairs])
    measure_answers(variant, pairs)
    variant.warnings = [*_pairing_warnings(found), *answer_warnings(variant.counts, chat=chat)]
    if gaps is not None:
        texts = list(gaps.texts.values())
        variant.metrics["unscored_rate"] = rate(gaps.failed + gaps.different_tokens, gaps.expected)
        if texts:
            measure_forced(variant, texts)
            variant.series = forced_series(texts)
        _mark_unscored(variant, gaps)
    variant.unmeasured |= baseline_failures(pairs)
    variant.metrics["unpaired_rate"] = rate(found.unpaired, found.unpaired + variant.counts["samples"])
    variant.verdict = verdict(variant)
    return variant


def baseline_failures(pairs: Sequence[AnswerPair]) -> dict[str, str]:
    """Metrics that need the baseline's answer, with the reason if requests of the baseline failed."""
    failed = sum(pair.a.error is not None for pair in pairs)
    return dict.fromkeys(AGAINST, f"the baseline failed on {failed} of {len(pairs)} samples") if failed else {}


def _mark_unscored(variant: Variant, gaps: ForcedGaps) -> None:
    """Texts that an engine failed to score break rules; texts that the engines tokenize differently are only left out."""
    differ = f"{gaps.different_tokens} of {gaps.expected} texts are tokenized differently by the two engines"
    unscored = f"{gaps.failed} of {gaps.expected} texts could not be scored by both: {gaps.error}"
    if gaps.different_tokens:
        variant.warnings.append(f"{differ} and have no KL")
    if gaps.failed:
        variant.warnings.append(f"no KL: {unscored}")
        variant.unmeasured |= dict.fromkeys(FORCED, unscored)
    elif gaps.different_tokens:
        variant.partial |= dict.fromkeys(FORCED, differ)


def _pairing_warnings(found: Pairs[Answer]) -> list[str]:
    warnings = []
    if found.different_data:
        warnings.append(f"{found.different_data} samples have the same id but different data in the two runs: left out")
    only = found.unpaired - 2 * found.different_data
    if only > 0:
        warnings.append(f"{only} samples are in one run only and are left out")
    different_prompts = sum(a.prompt != b.prompt for a, b in found.pairs)
    if different_prompts:
        warnings.append(f"{different_prompts} of {len(found.pairs)} prompts differ: the runs have different settings")
    return warnings


def _template_warnings(subjects: Sequence[Subject], config: CheckConfig) -> list[str]:
    """A chat template on one side only makes the prompts differ."""
    chat = config.settings.apply_chat_template
    templated = [subject.label for subject in subjects if chat or subject.templated]
    if not templated or len(templated) == len(subjects):
        return []
    return [f"only {' and '.join(templated)} applied a chat template: the prompts of the other models differ"]


def _same_prompts(baseline: Subject, candidate: Subject, config: CheckConfig) -> bool:
    return config.settings.apply_chat_template or baseline.templated == candidate.templated


def _forced_warnings(
    baseline: Subject, candidate: Subject, forced_tokens: int, texts: Sequence[ForcedText], gaps: ForcedGaps | None
) -> list[str]:
    """Why there is no KL, or what it was measured on."""
    if not forced_tokens:
        return []
    if gaps is None:
        without = [s.label for s in (baseline, candidate) if s.model.capabilities.top_logprobs == 0]
        if without:
            return [f"no KL: no log-probabilities of a given text from {' and '.join(without)}"]
        return ["no KL: the baseline has no answer to score"] if not texts else []
    warnings = []
    if any(text.plain for text in texts):
        warnings.append(
            "KL is measured on prompts as plain text, without the chat template: an engine cannot score chat messages"
        )
    if gaps.texts and not gaps.exact:
        warnings.append("KL is a lower bound: an engine returns only its top_logprobs, so all other tokens count as one")
    bad = sum(not math.isfinite(gap.kl) for text_gaps in gaps.texts.values() for gap in text_gaps)
    if bad:
        warnings.append(f"{counted(bad, 'position')} of {gaps.positions} NaN or infinite: every metric includes them")
    return warnings


def row_of(pair: AnswerPair, gaps: ForcedGaps | None) -> dict[str, Any]:
    """One sample as a row of check.json and of reports."""
    a, b = pair.a, pair.b
    row: dict[str, Any] = {
        "task": a.task,
        "id": a.id,
        "category": a.category,
        "prompt": excerpt(a.prompt),
        "gold": a.gold,
        "texts": [a.text, b.text],
        "extracted": [a.extracted, b.extracted],
        "right": list(pair.right),
        "errors": [a.error, b.error],
        "severity": pair.severity,
        "similarity": pair.similarity,
        "flipped": pair.flipped,
    }
    row["texts"], removed = excerpts_around(row["texts"], pair.divergence.char if pair.divergence else 0)
    if pair.divergence is not None:
        row["divergence"] = {**asdict(pair.divergence), "char": pair.divergence.char - removed}
        if a.tokens and b.tokens and pair.divergence.token is not None:
            row["divergence"]["tokens"] = [
                _token_entry(a.tokens, pair.divergence.token),
                _token_entry(b.tokens, pair.divergence.token),
            ]
    if choices := _choice_entries(a, b):
        row["choices"] = choices
    text_gaps = gaps.texts.get(f"{a.task}/{a.id}") if gaps else None
    if text_gaps:
        values = [gap.kl for gap in text_gaps]
        row["kl"] = {"mean": mean_of(values).value, "max": largest(values), "median": percentile(values, 0.5)}
        row["kl_positions"] = values
    return row


def _choice_entries(a: Answer, b: Answer) -> list[dict[str, Any]]:
    """The choices with their log-probabilities on both sides; none where a side lacks some, as after a failure."""
    if len(a.choices) < 2 or not len(a.choices) == len(a.scores) == len(b.scores):
        return []
    found = list(zip(a.choices, a.scores, b.scores, strict=True))[:ROW_CHOICES]
    return [{"text": excerpt(text, CHOICE_CHARS), "logprobs": [first, second]} for text, first, second in found]


def _token_entry(tokens: Sequence[Token], number: int) -> dict[str, Any] | None:
    """The token of a number, counted from 1, with its top_logprobs; None after the end of the text."""
    if number > len(tokens):
        return None
    token = tokens[number - 1]
    return {"text": token.text, "logprob": token.logprob, "top": list(token.top[:ROW_TOP_LOGPROBS])}
