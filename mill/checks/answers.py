"""The answers of a run, one for each sample, in the form that checks compare; and warnings about them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mill.api.errors import MillError, RunError
from mill.api.request import GENERATE, MULTI_ROUND, ROLLING
from mill.api.response import Response, Token
from mill.api.task import Opaque, RenderSettings, Task
from mill.metrics.differences import FAILED, Value
from mill.store.folder import MANIFEST, RunFolder
from mill.store.record import Record
from mill.store.sample_row import mean_over_repeats
from mill.store.samples import RunSample, read_samples, score_sample
from mill.support.validate import convert
from mill.tasks.load import recorded_task
from mill.tasks.suite import ANSWERED

TEXT, CHOICE, DOCUMENT = "text", "choice", "document"


@dataclass(frozen=True)
class Answer:
    """The answer to one repeat of a sample. `text` is the generated text, after the calls of tools where there are some, or
    the choice with the highest log-probability.

    `form` is the kind of answer: generated text, a choice (or label), or a document that was only scored. `value` is the
    sample's value of `metric`, the task's first one that is a number: the mean over all repeats, the same for each of them.
    `scores` are the log-probabilities of a sample's choices or of its document. `units` is the number of words of the
    document, `scored_tokens` that of its tokens, 0 where that is not known.
    """

    task: str
    id: str
    category: str
    prompt: str
    gold: Any
    text: str
    form: str = TEXT
    data_hash: str = ""
    request_key: str = ""
    """Digests of the sample's data and of its first request. Answers to different data are not compared, even if their ids
    are equal."""
    extracted: Any = None
    comparable: bool = False
    """Whether the task extracts an answer from this sample, so that it may flip."""
    metric: str = ""
    value: Value = None
    mean_of_right: bool = False
    """Whether each repeat is right or wrong, so that the mean of several is an accuracy."""
    finish_reason: str | None = None
    tokens: tuple[Token, ...] | None = None
    scores: tuple[float, ...] = ()
    units: float = 0.0
    scored_tokens: int = 0
    choices: tuple[str, ...] = ()
    """The choices of multiple choice by log-probability, in the order of `scores`."""
    error: str | None = None
    seconds: float | None = None
    first_token_s: float | None = None
    output_tokens: int = 0
    retries: int = 0
    retry_reason: str | None = None
    reasoning: str | None = None
    """What was generated before the answer. It is compared apart, and never part of `text`."""
    truncated: bool = False
    """Whether the prompt was truncated to fit the context."""

    @property
    def graded(self) -> bool:
        """Whether the sample is neither right nor wrong, but scored on a scale."""
        return isinstance(self.value, float) and self.value not in (0.0, 1.0) and not self.mean_of_right

    @property
    def counts(self) -> Value:
        """What the sample counts with in a comparison of scores."""
        return FAILED if self.error is not None else self.value

    @property
    def empty(self) -> bool:
        """Whether the model generated neither text nor a call, as an instruct model may without its chat template."""
        return self.form == TEXT and self.error is None and not self.text.strip()

    @property
    def cut_short(self) -> bool:
        """Whether generation stopped at the token limit."""
        return self.finish_reason == "length"

    @property
    def filtered(self) -> bool:
        return self.finish_reason == "content_filter"


def answers_of(task: Task, scored: Sequence[RunSample]) -> list[Answer]:
    """All repeats of all samples that the run has reached."""
    return [_answer(task, one, repeat) for one in scored if not one.pending for repeat in range(len(one.keys))]


def _answer(task: Task, scored: RunSample, repeat: int) -> Answer:
    responses = scored.responses[repeat] if scored.responses else []
    error = next((response.error for response in responses if response.failed), None)
    if error is None and len(responses) < len(scored.keys[repeat]):
        error = "no response"
    if error is None and scored.error is not None and scored.error.startswith("scoring failed"):
        error = scored.error
    form = TEXT if task.kind in (GENERATE, MULTI_ROUND) else DOCUMENT if task.kind == ROLLING else CHOICE
    extracted = None if error is not None else task.extracted(scored.sample, responses)
    metric = _compared_metric(task, scored)
    value: Value = mean_over_repeats(scored.values[metric]) if metric else None
    return Answer(
        task=task.name,
        id=scored.sample.id,
        category=task.category(scored.sample) or task.name,
        prompt=scored.prompt,
        gold=scored.target,
        text=_text(responses, extracted, form) if error is None else "",
        form=form,
        data_hash=scored.sample.data_hash,
        request_key=scored.keys[0][0] if scored.keys and scored.keys[0] else "",
        extracted=extracted,
        comparable=task.extracts(scored.sample),
        metric=metric,
        value=FAILED if scored.error is not None else value,
        mean_of_right=bool(metric) and {*scored.values[metric]} <= {0.0, 1.0},
        finish_reason=responses[-1].finish_reason if responses else None,
        tokens=_answer_tokens(responses[-1]) if form == TEXT and responses and not _calls(responses[:-1]) else None,
        scores=() if form == TEXT else tuple(response.score for response in responses if response.score is not None),
        units=next(
            (float(pair[1]) for values in scored.values.values() if isinstance(pair := values[0], (tuple, list))), 0.0
        ),
        scored_tokens=sum(response.prompt_tokens or 0 for response in responses) if form == DOCUMENT else 0,
        choices=tuple(scored.choices) if form == CHOICE else (),
        error=error,
        seconds=sum(known) if (known := [one.seconds for one in responses if one.seconds is not None]) else None,
        first_token_s=responses[0].first_token_s if responses else None,
        output_tokens=sum(response.output_tokens or 0 for response in responses),
        retries=sum(response.retries for response in responses),
        retry_reason=next((response.retry_reason for response in responses if response.retry_reason), None),
        reasoning=responses[-1].reasoning if form == TEXT and responses else None,
        truncated=any(response.truncated_tokens for response in responses),
    )


def _compared_metric(task: Task, scored: RunSample) -> str:
    """The task's first metric whose value is a number, except that of suites without gold answers, which only counts
    responses. A value that only the task can aggregate compares nothing."""
    names = scored.values if task.open_metrics else [name for name in task.metrics if name in scored.values]
    name = next((name for name in names if not isinstance(scored.values[name][0], Opaque)), "")
    return name if name and name != ANSWERED and isinstance(scored.values[name][0], (int, float)) else ""


def _text(responses: Sequence[Response], extracted: Any, form: str) -> str:
    if form == TEXT:
        return "\n".join([*_calls(responses), *([responses[-1].text] if responses[-1].text else [])])
    return str(extracted) if extracted is not None else (responses[0].label or "")


def _calls(responses: Sequence[Response]) -> list[str]:
    """The calls of tools in all rounds: the name, and the arguments with their keys sorted, as written where they are not
    JSON. Ids of calls are drawn by the server."""
    return [
        f"{call.name}({call.text if call.arguments is None else json.dumps(call.arguments, sort_keys=True)})"
        for response in responses
        for call in response.tool_calls
    ]


def _answer_tokens(response: Response) -> tuple[Token, ...] | None:
    """The tokens of the answer alone; None where it is not known which of them are reasoning."""
    if response.reasoning is None or response.tokens is None:
        return response.tokens
    return None if response.reasoning_tokens is None else response.tokens[response.reasoning_tokens :]


def read_answers(folder: RunFolder) -> list[Answer]:
    """The answers of a recorded run, scored with the current version of its tasks."""
    manifest, record, answers = folder.manifest(), Record(folder.path), list[Answer]()
    read = {name: read_samples(folder.samples_file(name)) for name in manifest["tasks"]}
    documents = {name: [one.sample.doc for one in samples] for name, samples in read.items()}
    settings = convert(manifest["settings"], RenderSettings, f"settings in {folder.path / MANIFEST}", RunError)
    for name, samples in read.items():
        try:
            task = recorded_task(name, documents, settings)
        except MillError as error:
            raise RunError(f"{folder.path} has a task that cannot be loaded: {error}") from error
        for sample in samples:
            if not any(sample.responses):  # the run was killed before scoring: the record may have the responses
                sample.responses[:] = [[r for key in keys if (r := record.lookup(key))] for keys in sample.keys]
        answers += answers_of(task, [score_sample(task, sample) for sample in samples])
    return answers


def answer_warnings(counts: Mapping[str, int], *, chat: bool = False) -> list[str]:
    """Answers that are empty, truncated at the token limit, without an extracted answer, or filtered by the server."""
    warnings, n = [], counts.get("samples", 0)
    if counts.get("empty"):
        both = f", {counts['both_empty']} of them on both sides, which is no agreement" if counts.get("both_empty") else ""
        baseline = f", {counts['baseline_empty']} of the baseline" if counts.get("baseline_empty") else ""
        hint = "" if chat else "; an instruct model may need --chat"
        warnings.append(f"{counts['empty']} of {n} samples have an empty answer{baseline}{both}{hint}")
    if counts.get("cut_short"):
        flips = (
            f", {counts['flips_cut_short']} of {counts['flips']} flips among them" if counts.get("flips_cut_short") else ""
        )
        warnings.append(
            f"{counts['cut_short']} of {n} samples have an answer that ended at the token limit{flips}; see --max_tokens"
        )
    if counts.get("unextracted"):
        warnings.append(f"no answer could be extracted from {counts['unextracted']} of {n} samples on either side")
    if counts.get("filtered"):
        warnings.append(f"{counts['filtered']} of {n} samples have an answer that the server filtered")
    return warnings


def truncation_warnings(answers: Sequence[Answer]) -> list[str]:
    """Prompts that were longer than the context and were cut on the left, counted for each task."""
    prompts = Counter(answer.task for answer in answers)
    truncated = Counter(answer.task for answer in answers if answer.truncated)
    return [
        f"{count} of {prompts[task]} prompts of {task} were truncated on the left to fit the context"
        for task, count in truncated.items()
    ]
