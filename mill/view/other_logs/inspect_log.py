"""A log of inspect_ai as a run, a sample with its epochs as repeats.

A score has the name of its scorer, `SCORER/NAME` where the scorer gives several. Its accuracy or mean has that name as
well, since it sums up the values of the samples; other metrics are `SCORE/METRIC`. `SCORE@REDUCER` are those of epochs
that are not reduced to their mean. `prompt` are the messages before the first that the model generated. Responses are the
messages that it generated, one for each round; the other columns are as in mill/store/sample_row.py."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from mill.api.errors import RunError
from mill.api.message import MEDIA_KINDS
from mill.api.response import Response
from mill.api.task import Opaque, Sample, TaskType, Value
from mill.api.tools import ERROR, MALFORMED, OK, TIMED_OUT, ToolCall, ToolResult
from mill.metrics.estimate import Estimate
from mill.store.folder import RunFolder
from mill.store.sample_row import ROUNDS
from mill.store.samples import RunSample
from mill.store.schema import SessionEntry, TaskResult
from mill.support.files import MOST_LINE, json_text
from mill.support.secrets import redact
from mill.support.validate import convert
from mill.view.other_logs.inspect_files import (
    InspectChoice,
    InspectContent,
    InspectHeader,
    InspectLog,
    InspectMessage,
    InspectModelEvent,
    InspectOutput,
    InspectSample,
    InspectScore,
    InspectScores,
    Scalar,
    in_order,
    open_inspect_log,
)
from mill.view.other_logs.write import Converted, ConvertedTask, tool_estimate, write_run
from mill.view.scan import INSPECT, OtherLog

_MEANS = ("accuracy", "mean")
_STDERR = "stderr"
_ENDED = {"success": "finished", "cancelled": "interrupted", "error": "failed"}
_NO_SETTINGS = ("max_connections", "max_retries", "timeout")  # of the generation options: they change no answer


def convert_inspect(log: OtherLog, folder: RunFolder) -> None:
    with open_inspect_log(log.path) as file:
        header = file.header
        found, epochs, total = header.results, max(1, header.eval.config.epochs or 1), header.eval.dataset.samples or 0
        metrics = estimates(found.scores, epochs, found.completed_samples // epochs) if found else {}
        warnings = [f"the evaluation failed: {header.error.message}"] if header.error else []
        if header.status in ("started", "cancelled"):
            warnings.append(f"the evaluation {'was cancelled' if header.status == 'cancelled' else 'has not ended'}")
        kind, version = TaskType.GENERATIVE_QA.value, header.eval.task_version
        result = TaskResult(header.eval.task, kind, version, 0, 0, total, errors=0, metrics=metrics, warnings=warnings)
        task = ConvertedTask(result, _samples(file) if file.epochs else None)
        write_run(folder, _about(log, header), _session(header), [task])


def _samples(file: InspectLog) -> Iterator[Converted]:
    for name in in_order(list(file.epochs), file.header.eval.dataset.sample_ids or ()):
        try:
            yield convert_sample(list(file.read(name)))
        except (RunError, RecursionError) as error:
            yield str(error)


def estimates(scores: Sequence[InspectScores], epochs: int, n: int) -> dict[str, Estimate]:
    """The metrics of all scores; the standard error is that of the accuracy or mean. `n` is the number of samples of scores
    that do not say it, as in logs of older versions."""
    metrics = {}
    for score in scores:
        name = score.name if score.scorer in ("", score.name) else f"{score.scorer}/{score.name}"
        if epochs > 1 and score.reducer not in (None, "mean"):
            name += f"@{score.reducer}"
        values = {metric: found.value for metric, found in score.metrics.items() if found.value is not None}
        mean = next((metric for metric in _MEANS if metric in values), None)
        stderr = values.pop(_STDERR, None) if mean else None
        for metric, value in values.items():
            own = f"{name}/{metric}" if metric != mean else name
            metrics[own] = tool_estimate(value, stderr if metric == mean else None, score.scored_samples or n)
    return metrics


def _about(log: OtherLog, header: InspectHeader) -> dict[str, Any]:
    """inspect_ai names a model `PROVIDER/MODEL`."""
    spec = header.eval
    backend, slash, name = spec.model.partition("/")
    arguments = {**spec.model_args, **({"base_url": spec.model_base_url} if spec.model_base_url else {})}
    model = name if slash else spec.model
    return {
        "model": {"name": model, "backend": backend, "arguments": redact(arguments), "identity": {}},
        "settings": {name: value for name, value in _settings(header).items() if value not in (None, {}, [])},
        "versions": spec.packages,
        "source": {"tool": INSPECT, "path": str(log.path)},
    }


def _settings(header: InspectHeader) -> dict[str, Any]:
    config = header.eval.config
    options = {**header.eval.model_generate_config, **header.plan.config}
    return {
        "gen_kwargs": {name: value for name, value in options.items() if name not in _NO_SETTINGS},
        "repeats": config.epochs,
        "epochs_reducer": config.epochs_reducer,
        "limit": config.limit,
        "task_args": header.eval.task_args,
        "solvers": [step.solver for step in header.plan.steps],
    }


def _session(header: InspectHeader) -> SessionEntry:
    started, completed = _time(header.stats.started_at or header.eval.created), _time(header.stats.completed_at)
    usage = header.stats.model_usage.get(header.eval.model)
    return SessionEntry(
        id=header.eval.eval_id or "1",
        order=1,
        started=started.strftime("%Y-%m-%dT%H:%M:%SZ") if started else "-",
        ended=_ENDED.get(header.status, "unfinished"),
        seconds=max(0.0, (completed - started).total_seconds()) if started and completed else 0.0,
        prompt_tokens=usage.prompt_tokens if usage else 0,
        output_tokens=usage.output_tokens if usage else 0,
        reasoning_tokens=(usage.reasoning_tokens or 0) if usage else 0,
    )


def _time(text: str) -> datetime | None:
    """A time as inspect_ai writes it; None for anything else."""
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return found.astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None


_OUTCOMES = {"timeout": TIMED_OUT, "parsing": MALFORMED}


def text_of(message: InspectMessage) -> str:
    """The text of a message, its parts joined as inspect_ai does."""
    if isinstance(message.content, str):
        return message.content
    return "\n".join(part.text or "" for part in message.content if part.type == "text")


def reasoning_of(message: InspectMessage) -> str | None:
    """What the model wrote before its answer; the summary of it where the provider hides it."""
    parts = [] if isinstance(message.content, str) else [part for part in message.content if part.type == "reasoning"]
    if not parts:
        return None
    return "\n".join(
        (part.summary or "[redacted]") if part.redacted else part.reasoning or part.summary or "" for part in parts
    )


def tool_calls(message: InspectMessage) -> tuple[ToolCall, ...]:
    return tuple(ToolCall.parse(call.function, call.arguments, call.id) for call in message.tool_calls or ())


def tool_results(message: InspectMessage, later: Sequence[InspectMessage]) -> tuple[ToolResult, ...]:
    """The results of a message's calls, in their order; none where one of them has no result."""
    answers = {one.tool_call_id: one for one in later if one.role == "tool" and isinstance(one.tool_call_id, str)}
    calls = message.tool_calls or []
    if any(call.id not in answers for call in calls):
        return ()
    found = []
    for call in calls:
        message, error = answers[call.id], answers[call.id].error
        outcome = _OUTCOMES.get(error.type, ERROR) if error else OK
        output = text_of(message) or (error.message if error else "")
        found.append(ToolResult(call.function, output, outcome, str(message.tool_call_id or "")))
    return tuple(found)


def has_media(messages: Sequence[InspectMessage]) -> bool:
    return any(
        part.type in MEDIA_KINDS for message in messages if isinstance(message.content, list) for part in message.content
    )


def as_json(message: InspectMessage, *, media: bool = True) -> dict[str, Any]:
    """A message as `Message.to_json` writes it. With `media`, images, audio and videos are data URLs or addresses."""
    content: str | list[dict[str, str]] = text_of(message)
    if isinstance(message.content, list) and any(part.type not in ("text", "reasoning") for part in message.content):
        content = [_part(part, media) for part in message.content if part.type != "reasoning"]
    shown: dict[str, Any] = {"role": message.role, "content": content}
    if message.tool_calls:
        shown["tool_calls"] = [call.message() for call in tool_calls(message)]
    if message.role == "tool":
        named = {"tool_call_id": message.tool_call_id, "name": message.function}
        shown |= {name: value for name, value in named.items() if isinstance(value, str)}
        if message.error and not text_of(message):
            shown["content"] = message.error.message
    return shown


def _part(part: InspectContent, media: bool) -> dict[str, str]:
    if part.type in MEDIA_KINDS:
        source = getattr(part, part.type) or f"<{part.type}>"
        return {"type": part.type, part.type: source if media or not source.startswith("data:") else f"<{part.type}>"}
    if part.type == "text":
        return {"type": "text", "text": part.text or ""}
    if part.type == "tool_use":  # a tool that the provider ran
        return {"type": "text", "text": f"{part.name}({part.arguments}): {part.result}"}
    return {"type": "text", "text": f"<{part.type}{f' {part.filename}' if part.filename else ''}>"}


_ATTACHMENT = "attachment://"
_LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}  # correct, partial, incorrect, no answer
_WORDS = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
_FINISH = {"max_tokens": "length", "model_length": "length"}
_ROUND_LIMITS = ("message", "turn")


@dataclass(frozen=True)
class Epoch:
    """A sample in one epoch, with the responses of the model and the messages before the last of them."""

    sample: InspectSample
    responses: list[Response]
    prompt: list[InspectMessage]
    before: list[InspectMessage]
    tools: list[dict[str, Any]]

    @property
    def name(self) -> str:
        return self.sample.uuid or f"{self.sample.id}/{self.sample.epoch}"


def convert_sample(raw: Sequence[tuple[Any, str]]) -> Converted:
    """A sample from its epochs, each as JSON with the file that it is in."""
    epochs = [_epoch(data, where) for data, where in raw]
    first = epochs[0]
    sample = first.sample
    prompt = json_text([as_json(message, media=False) for message in first.prompt])
    dialog = any(len(epoch.responses) > 1 or has_media(epoch.before) for epoch in epochs)
    # The answer that the first scorer read, of those that did.
    scores = [(epoch.sample.scores or {}).values() for epoch in epochs]
    answers = [next((score.answer for score in some if score.answer is not None), None) for some in scores]
    by_epoch = [_epoch_values(epoch.sample.scores or {}) for epoch in epochs]
    names = dict.fromkeys(name for found in by_epoch for name in found)
    values = {name: [found.get(name) for found in by_epoch] for name in names}
    details = [_details(epoch.sample) for epoch in epochs]
    limited = any(epoch.sample.limit and epoch.sample.limit.type in _ROUND_LIMITS for epoch in epochs)
    scored = RunSample(
        Sample(str(sample.id), _doc(sample)),
        sample.target[0] if isinstance(sample.target, list) and len(sample.target) == 1 else sample.target,
        prompt,
        [],
        [[f"{epoch.name}/{index}" for index in range(max(1, len(epoch.responses)))] for epoch in epochs],
        [epoch.responses for epoch in epochs],
        sent=prompt,
        messages=[[as_json(message) for message in epoch.before] for epoch in epochs] if dialog else [],
        tools=first.tools,
        noted=frozenset([ROUNDS] if limited else []),
        values=values,
        error=_error(epochs),
        extracted=answers[0],
        extracted_repeats=answers if len(answers) > 1 else (),
        choices=sample.choices or (),
        details=details if any(details) else (),
    )
    return scored, _choice_columns(sample, answers[0], values)


def _epoch(data: Any, where: str) -> Epoch:
    sample: InspectSample = convert(_resolved(data, where), InspectSample, where, RunError)
    calls = _model_calls(sample, where)
    given = [InspectMessage(role="user", content=sample.input)] if isinstance(sample.input, str) else sample.input
    messages = sample.messages or given
    generated = [
        index for index, message in enumerate(messages) if message.role == "assistant" and message.source != "input"
    ]
    responses = [_response(messages, index, calls) for index in generated]
    if not responses and sample.error is not None:
        responses = [Response(error=sample.error.message)]
    prompt = messages[: generated[0]] if generated else messages
    before = messages[: generated[-1]] if generated else messages
    return Epoch(sample, responses, prompt, before, _tools(calls.values()))


def _resolved(data: Any, where: str) -> Any:
    """The sample with attachments in their positions. An attachment may be named often: the sum is limited."""
    attachments = data.get("attachments") if isinstance(data, dict) else None
    if not isinstance(attachments, dict) or not attachments:
        return data
    left = MOST_LINE

    def resolve(one: Any) -> Any:
        nonlocal left
        if isinstance(one, str) and one.startswith(_ATTACHMENT):
            found = attachments.get(one.removeprefix(_ATTACHMENT), one)
            left -= len(found) if isinstance(found, str) else 0
            if left < 0:
                raise RunError(f"{where} is larger than {MOST_LINE >> 20} MiB with its attachments")
            return found
        if isinstance(one, dict):
            return {name: resolve(value) for name, value in one.items()}
        return [resolve(value) for value in one] if isinstance(one, list) else one

    events = data.get("events")
    calls = [event for event in events if _is_model_call(event)] if isinstance(events, list) else events
    needed = {name: value for name, value in data.items() if name not in ("attachments", "events", "events_data", "store")}
    return {**resolve(needed), "events": calls}


def _is_model_call(event: Any) -> bool:
    return isinstance(event, dict) and event.get("event") == "model"


def _model_calls(sample: InspectSample, where: str) -> dict[str, InspectModelEvent]:
    """The calls of models by the message that they generated; those of graders generated none of the sample's."""
    calls = {}
    for event in filter(_is_model_call, sample.events or ()):
        call: InspectModelEvent = convert(event, InspectModelEvent, f"{where} event", RunError)
        for choice in call.output.choices[:1]:
            if choice.message.id:
                calls[choice.message.id] = call
    own = {message.id for message in sample.messages}
    if sample.output.choices and (last := sample.output.choices[0].message.id) and last not in calls:
        calls[last] = InspectModelEvent(sample.output)
    return {name: call for name, call in calls.items() if name in own}


def _response(messages: Sequence[InspectMessage], index: int, calls: Mapping[str, InspectModelEvent]) -> Response:
    message = messages[index]
    call = calls.get(message.id or "") or InspectModelEvent(InspectOutput())
    choice = call.output.choices[0] if call.output.choices else InspectChoice(message, "")
    usage = call.output.usage
    return Response(
        text=text_of(message),
        reasoning=reasoning_of(message),
        finish_reason=_FINISH.get(choice.stop_reason, choice.stop_reason) or None,
        prompt_tokens=usage.prompt_tokens if usage else None,
        output_tokens=usage.output_tokens if usage else None,
        reasoning_tokens=usage.reasoning_tokens if usage else None,
        seconds=call.output.time,
        retries=call.retries or 0,
        tool_calls=tool_calls(message),
        tool_results=tool_results(message, messages[index + 1 :]),
    )


def _tools(calls: Any) -> list[dict[str, Any]]:
    """The tools of all calls of the model, each once."""
    tools = {tool.name: tool for call in calls for tool in call.tools}
    return [
        {"type": "function", "function": {"name": one.name, "description": one.description, "parameters": one.parameters}}
        for one in tools.values()
    ]


def _doc(sample: InspectSample) -> dict[str, Any]:
    shown = {"input": sample.input if isinstance(sample.input, str) else None, "target": sample.target}
    return {
        name: value
        for name, value in {**shown, "choices": sample.choices, "metadata": sample.metadata}.items()
        if value not in (None, {})
    }


def _epoch_values(scores: Mapping[str, InspectScore]) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for name, score in scores.items():
        if isinstance(score.value, dict):
            values |= {f"{name}/{part}": _value(value) for part, value in score.value.items()}
        else:
            values[name] = Opaque(score.value) if isinstance(score.value, list) else _value(score.value)
    return values


def _value(value: Scalar) -> Value:
    """The number that inspect_ai's metrics take a value for; other texts stay texts. NaN is what was not scored."""
    known = _LETTERS.get(value, _WORDS.get(value.lower())) if isinstance(value, str) else None
    if known is not None or value is None:
        return known
    try:
        number = float(value)
    except (OverflowError, ValueError):
        return Opaque(str(value))
    return Opaque(value) if isinstance(value, str) and not math.isfinite(number) else None if math.isnan(number) else number


def _details(sample: InspectSample) -> dict[str, Any]:
    """Why a sample has its scores."""
    details: dict[str, Any] = {}
    for name, score in (sample.scores or {}).items():
        details |= {f"{name} explanation": score.explanation} if score.explanation else {}
        details |= {f"{name} reason": score.reason} if score.reason else {}
        details |= {f"{name} metadata": score.metadata} if score.metadata else {}
    if sample.limit:
        details["limit"] = sample.limit.type if sample.limit.limit is None else f"{sample.limit.type} {sample.limit.limit:g}"
    return {**details, "uuid": sample.uuid} if sample.uuid else details


def _error(epochs: Sequence[Epoch]) -> str | None:
    for epoch in epochs:
        if epoch.sample.error is not None:
            message = epoch.sample.error.message
            return f"epoch {epoch.sample.epoch}: {message}" if len(epochs) > 1 else message
    return None


def _choice_columns(sample: InspectSample, answer: str | None, values: Mapping[str, list[Value]]) -> dict[str, Any]:
    """The columns of multiple choice: the model named a letter, so that there are no log-probabilities."""
    if not sample.choices:
        return {}
    letter = (answer or "").strip()
    index = ord(letter) - ord("A") if len(letter) == 1 else -1
    right = next((found[0] for found in values.values()), None)
    return {
        "chosen": sample.choices[index] if 0 <= index < len(sample.choices) else None,
        "choice_logprobs": None,
        "correct": right == 1.0 if right in (0.0, 1.0) else None,
    }
