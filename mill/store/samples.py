"""A sample of a run in memory: what was asked and answered and, once it was scored, its values.

A file has it as one row: see sample_row.py. It names each image, audio and video with the digest of its content, so that
`mill view` can show them after the run. Those of files are read from there again. What has no file, such as an image that a
task has drawn, is copied to `media/<digest>` in the run's folder, up to a limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

import mill.metrics  # noqa: F401  registers the built-in metrics
from mill.api.errors import MillError
from mill.api.message import AUDIO, IMAGE, Media
from mill.api.registry import metrics
from mill.api.request import GENERATE, LOGLIKELIHOOD, Request
from mill.api.response import Response
from mill.api.task import Opaque, Sample, Task, Value
from mill.execute.sample_state import SampleState
from mill.store.folder import RunFolder
from mill.store.sample_row import (
    FLAGS,
    NOT_ANSWERED,
    PENDING,
    ROUNDS,
    SampleRow,
    columns_of,
    line_of,
    number,
    plain,
    run_columns,
    status_of,
    total,
    unique_rows,
    write_lines,
)
from mill.store.sample_schema import read_response
from mill.support.files import encode_float, json_text, write_atomically
from mill.support.terminal import describe, warn
from mill.tasks import hooks


class RunSample(Struct, frozen=True, dict=True):
    """`keys` and `responses` have a list for each repeat; a key names a response in the record.

    `prompt` is the same for every model; `sent` is what the model got, after its chat template.
    """

    sample: Sample
    target: Any
    prompt: str
    continuations: list[str]
    keys: list[list[str]]
    responses: list[list[Response]]
    judgements: list[list[str | None]] = []
    """For each repeat the text of each judgement; None where the judge failed. Empty where there was no judge."""
    sent: str = ""
    """Empty where it is not known, as before the run."""
    prompts: list[str] = []
    """Where a sample's texts are generated from different prompts: what the model got for each response."""
    messages: list[list[dict[str, Any]]] = []
    """Of a dialog: for each repeat those of the last round, for people who read the sample."""
    tools: list[dict[str, Any]] = []
    """Those of its first request."""
    added_tools: list[dict[str, Any]] = []
    """Of a dialog: those that came in a later round."""
    media: list[dict[str, str]] = []
    """The images, audio and videos of its prompt."""
    noted: frozenset[str] = frozenset()
    """Flags that are not seen in the responses."""

    values: dict[str, list[Value]] = {}
    """Metric -> its value of each repeat; empty before the sample is scored, and where it has no score."""
    error: str | None = None
    """Once it was scored: why it has no score."""
    category: str = ""
    extracted: Any = None
    """The answer that the task read from the first repeat."""
    extracted_repeats: Sequence[Any] = ()
    """Those of all repeats, where there are several."""
    choices: Sequence[str] = ()
    """The choices that were scored, where the task is multiple choice by log-probability."""
    aggregations: Mapping[str, str] = {}
    """Metric -> the registered metric that sums up its values."""
    details: Sequence[Mapping[str, Any]] = ()
    """For each repeat why it has these values, where the task knows more than them."""

    def updated(self, **changes: Any) -> RunSample:
        return replace(self, **changes)

    @property
    def unanswered(self) -> str | None:
        """Why the sample cannot be scored: the first failed or missing response."""
        for repeat, keys in zip(self.responses, self.keys, strict=True):
            for response in repeat:
                if response.failed:
                    return response.error
            if len(repeat) < len(keys):
                return NOT_ANSWERED
        return None if self.responses else NOT_ANSWERED

    @property
    def pending(self) -> bool:
        return self.error == NOT_ANSWERED

    @cached_property
    def flags(self) -> list[str]:
        """The names of its flags, in the order of `FLAGS`."""
        responses = [response for repeat in self.responses for response in repeat if not response.plain_score]
        if not responses and not self.noted:  # most samples of multiple choice
            return []
        return [name for name, flag in FLAGS.items() if name in self.noted or any(map(flag.seen, responses))]

    @property
    def status(self) -> str:
        return status_of(self.error, next(iter(self.means.values()), None))

    @cached_property
    def means(self) -> dict[str, Any]:
        """Each metric of this sample alone: the mean over repeats, or what a perplexity or another metric of pairs is here.
        A value that only the task's own aggregation can read is shown as text; None where there is none."""
        return {name: _mean(values, self.aggregations.get(name, "")) for name, values in self.values.items()}


def _mean(values: Sequence[Value], aggregation: str) -> Any:
    known = [value for value in values if value is not None]
    if not known:
        return None
    if isinstance(known[0], Opaque):
        return shown(known[0].value)
    try:
        if isinstance(known[0], (tuple, list)):
            value = float(metrics.get(aggregation)([known]).value)
        else:
            value = sum(value for value in known if isinstance(value, (int, float))) / len(known)
    except Exception:  # a third-party metric that needs more than one sample
        return None
    return value if math.isfinite(value) else None


def shown(value: Any) -> Any:
    """A value that only its task can read, for people: numbers, texts and mappings of numbers as they are, others as
    text."""
    number = value.item() if hasattr(value, "item") and getattr(value, "size", 0) == 1 else value
    if isinstance(number, (list, tuple)):
        return repr([shown(part) for part in number])
    if isinstance(number, (bool, int, float)):
        return encode_float(float(number))
    if isinstance(number, dict) and all(isinstance(one, (int, float)) for one in number.values()):
        return {str(name): encode_float(float(one)) for name, one in number.items()}
    return number if isinstance(number, str) else repr(number)


def from_state(state: SampleState, sent: Sequence[str] = ()) -> RunSample:
    """A sample that ran, or that is about to; `sent` are its `prompt_requests` as the model got them."""
    return with_answers(without_answers(state), state, sent)


def with_answers(asked: RunSample, state: SampleState, sent: Sequence[str]) -> RunSample:
    responses = asked.responses if state.open_requests() else state.repeats()
    return asked.updated(responses=responses, sent=sent[-1] if sent else "", prompts=list(sent) if len(sent) > 1 else [])


def without_answers(state: SampleState) -> RunSample:
    """What is asked. Only dialogs change while they are answered."""
    task, sample = state.task, state.sample
    if state.rounds:
        keys = [[request.key for request in rounds] for rounds in state.rounds]
        continuations = []
    else:
        clones = [request.clones() for request in state.requests]
        keys = [[clone.key for clone in repeat] for repeat in zip(*clones, strict=True)]
        continuations = [request.continuation for request in state.requests if request.continuation]
    visible = prompt_requests(state)
    return RunSample(
        sample,
        task.target(sample),
        visible[-1].text,
        continuations,
        keys,
        [[] for _ in keys],
        messages=[_messages(rounds[-1]) for rounds in state.rounds],
        tools=[tool.to_dict() for tool in state.first_request.tools],
        added_tools=[tool.to_dict() for tool in visible[-1].tools if tool not in state.first_request.tools],
        media=[{"type": one.kind, "name": one.name, "digest": one.digest} for one in visible[-1].media],
        noted=frozenset([ROUNDS] if state.ended_at_limit() else []),
    )


def prompt_requests(state: SampleState) -> list[Request]:
    """The requests whose prompts a sample shows: of generated texts all; of a dialog the last round; of choices the first.

    The last of them is in the column `prompt`, as that of the response is the last.
    """
    if state.rounds:
        return [state.rounds[0][-1]]
    return state.requests if state.requests[-1].kind == GENERATE else state.requests[:1]


def _messages(request: Request) -> list[dict[str, Any]]:
    return [] if isinstance(request.context, str) else [message.to_json() for message in request.context]


def score_sample(task: Task, one: RunSample) -> RunSample:
    """An error is not an answer: a sample with one has no value. Nor has one that the task's scoring fails on."""
    sample, error = one.sample, one.unanswered
    choices = list(map(str, hooks.attempt(lambda: task.choice_texts(sample)) or ()))
    if not choices and task.kind == LOGLIKELIHOOD and len(one.continuations) > 1:
        choices = one.continuations
    category = str(hooks.attempt(lambda: task.category(sample)) or "")
    found: dict[str, Any] = {"values": {}, "category": category, "choices": choices, "extracted": None}
    found |= {"extracted_repeats": (), "aggregations": {}, "details": ()}
    if error is None:
        try:
            found |= _scores(task, one)
        except KeyboardInterrupt:
            raise
        except BaseException as failure:  # third-party scoring code: its failure is this sample's, not the run's
            error = f"scoring failed: {describe(failure)}"
    return one.updated(error=error, **found)


def _scores(task: Task, one: RunSample) -> dict[str, Any]:
    names = metrics_of(task, [one])
    repeats = [_values(task, one, repeat) for repeat in range(len(one.responses))]
    values = {name: [_number(name, found) for found in repeats] for name in names}
    if task.open_metrics:
        more = dict.fromkeys(name for found in repeats for name in found if name not in values)
        values |= {name: [_number(name, {name: None, **found}) for found in repeats] for name in more}
    extracted = [hooks.attempt(partial(task.extracted, one.sample, repeat)) for repeat in one.responses]
    details = [hooks.attempt(partial(task.details, one.sample, repeat)) or {} for repeat in one.responses]
    return {
        "values": values,
        "aggregations": names,
        "extracted": extracted[0],
        "extracted_repeats": extracted if len(extracted) > 1 else (),
        "details": details if any(details) else (),
    }


def metrics_of(task: Task, samples: Iterable[RunSample]) -> dict[str, str]:
    """A task's metrics, with those of its judge where there was one."""
    judged = task.judge is not None and any(one.judgements for one in samples)
    return {**task.metrics, **(task.judge.metrics if task.judge is not None and judged else {})}


def _values(task: Task, one: RunSample, repeat: int) -> Mapping[str, Value]:
    responses = one.responses[repeat]
    if task.judge is None or not one.judgements:
        return task.score(one.sample, responses)
    return task.score_judged(one.sample, responses, one.judgements[repeat])


def _number(name: str, found: Mapping[str, Value]) -> Value:
    """A metric's value of one repeat as a number, or as the pair of numbers that a perplexity needs."""
    if name not in found:
        raise ValueError(f"score() gave no {name!r}, only {', '.join(found) or 'nothing'}")
    value = found[name]
    if value is None or isinstance(value, Opaque):
        return value
    parts = tuple(float(part) for part in value) if isinstance(value, (tuple, list)) else (float(value),)
    if any(math.isnan(part) for part in parts):
        raise ValueError(f"{name} is NaN")
    return (parts[0], parts[1]) if len(parts) == 2 else parts[0]


def row_of(run: Mapping[str, Any], task: str, one: RunSample) -> SampleRow:
    """`run` are the columns of the run, as `run_columns` gives them."""
    first, means = one.responses[0] if one.responses else [], one.means
    return SampleRow(
        **run,
        task=task,
        id=one.sample.id,
        category=one.category or None,
        status=status_of(one.error, next(iter(means.values()), None)),
        flags=one.flags,
        prompt=one.sent or one.prompt,
        target=_as_text(one.target),
        response=_text(first),
        reasoning=first[-1].reasoning if first else None,
        extracted=one.extracted,
        error=None if one.pending else one.error,
        finish_reason=first[-1].finish_reason if first else None,
        prompt_tokens=total([response.prompt_tokens for response in first]),
        output_tokens=total([response.output_tokens for response in first]),
        seconds=total([response.seconds for response in first]),
        reasoning_tokens=total([response.reasoning_tokens for response in first]),
        data_hash=one.sample.data_hash,
        means=means,
        continuations=one.continuations,
        responses=[[response.to_dict() for response in repeat] for repeat in one.responses],
        values={name: [_encoded(value) for value in values] for name, values in one.values.items()},
        keys=one.keys,
        doc=one.sample.doc,
        **_choices(one, first),
        unrendered=one.prompt if one.sent and one.sent != one.prompt else None,
        extracted_repeats=list(one.extracted_repeats),
        judgements=one.judgements,
        prompts=one.prompts,
        messages=one.messages if any(one.messages) else [],
        tools=one.tools,
        added_tools=one.added_tools,
        media=one.media,
        details=[dict(repeat) for repeat in one.details],
    )


def _as_text(target: Any) -> str | None:
    """A gold answer as text, so that the column has one type in all files; a list or an object as JSON."""
    if target is None or isinstance(target, str):
        return target
    return json_text(target) if isinstance(target, (list, tuple, dict, bool)) else str(target)


def _text(responses: Sequence[Response]) -> str | None:
    if not responses:
        return None
    return responses[-1].text if responses[-1].text is not None else responses[-1].label


def _choices(one: RunSample, responses: Sequence[Response]) -> dict[str, Any]:
    """The columns of multiple choice; none for other tasks. `correct` is the metric acc where that is 0 or 1."""
    if not one.choices:
        return {}
    scores = [response.score for response in responses]
    known = [score for score in scores if score is not None and not math.isnan(score)]
    best = scores.index(max(known)) if known and len(scores) == len(one.choices) else None
    right = one.values.get("acc", [None])[0]
    return {
        "choices": list(one.choices),
        "chosen": None if best is None else one.choices[best],
        "choice_logprobs": [score if score is not None and math.isfinite(score) else None for score in scores],
        "correct": right == 1.0 if right in (0.0, 1.0) else None,
    }


def _encoded(value: Value) -> Any:
    if value is None or isinstance(value, Opaque):
        return None if value is None else shown(value.value)
    return [encode_float(part) for part in value] if isinstance(value, (tuple, list)) else encode_float(float(value))


def sample_of(row: SampleRow, where: object = "a sample") -> RunSample:
    """The sample in memory, with what scoring has found. `where` names the row in a message."""
    return RunSample(
        Sample(row.id, plain(row.doc)),  # type: ignore[arg-type]
        plain(row.target),
        row.unrendered or row.prompt,
        row.continuations,
        row.keys,
        [[read_response(response, where) for response in repeat] for repeat in plain(row.responses)],
        plain(row.judgements),
        sent=row.prompt,
        prompts=row.prompts,
        messages=plain(row.messages),
        tools=plain(row.tools),
        added_tools=plain(row.added_tools),
        media=plain(row.media),
        noted=frozenset({ROUNDS} & set(row.flags)),
        values={name: [_value(value) for value in repeats] for name, repeats in row.values.items()},
        error=NOT_ANSWERED if row.status == PENDING else row.error,
        category=row.category or "",
        extracted=plain(row.extracted),
        extracted_repeats=plain(row.extracted_repeats),
        choices=row.choices or (),
        details=plain(row.details),
    )


def _value(value: Any) -> Value:
    """A metric's value of one repeat, from JSON."""
    if isinstance(value, list):
        parts = [number(part) for part in value]
        return (parts[0], parts[1]) if len(parts) == 2 and None not in parts else Opaque(value)  # type: ignore[return-value]
    found = math.nan if value == "NaN" else number(value)
    return found if found is not None or value is None else Opaque(value)


def write_samples(folder: RunFolder, model: str, task: str, samples: Iterable[RunSample], *, sync: bool = True) -> None:
    """The samples of a task, as lines of its file in a run's folder; `model` is the model's name."""
    run = run_columns(model, folder)
    write_lines(folder, task, (line_of(columns_of(row_of(run, task, one))) for one in samples), sync=sync)


def read_samples(file: Path) -> list[RunSample]:
    """Samples as a run wrote them, with their responses. Two lines of one sample are refused."""
    return [sample_of(row, where) for where, row in unique_rows(file).values()]


MEDIA = "media"  # the folder of what has no file
MOST_STORED = 1 << 28  # bytes of one run


def store_unnamed(folder: RunFolder, media: Iterable[Media]) -> None:
    """Copy what cannot be read again from a file; a copy that fails costs an image in the viewer, never the run."""
    target = folder.path / MEDIA
    stored = sum(file.stat().st_size for file in target.glob("*")) if target.is_dir() else 0
    for one in media:
        if not one.name.startswith("<") or (target / one.digest).exists():
            continue
        try:
            content = _encoded_media(one)
            if content is None:
                continue
            stored += len(content)
            if stored > MOST_STORED:
                warn(f"{target} is full: the {one.kind}s of further samples are not stored for `mill view`")
                return
            write_atomically(target / one.digest, content, root=folder.root, sync=False)
        except (MillError, OSError, ValueError, SyntaxError):  # Pillow reports a broken file as a SyntaxError
            continue


def _encoded_media(media: Media) -> bytes | None:
    """The bytes of a file, of an image or of samples of audio; None for addresses, frames, and samples without a rate."""
    from mill.models.media.decode import image_bytes, wav_bytes

    given = media.encoded()
    if given is not None or media.is_url:
        return given
    if media.kind == IMAGE:
        return image_bytes(media)[1]
    return wav_bytes(media) if media.kind == AUDIO and media.rate else None
