"""A log of inspect_ai as a run of mill, read with inspect_ai: epochs are repeats. Scores are inspect_ai's own.

A score is named after its scorer, `SCORER/NAME` where the scorer gives several; its accuracy or mean has that name, another
metric is `SCORE/METRIC`, and epochs that are not reduced to their mean are `SCORE@REDUCER`. `prompt` are the messages before
the first that the model generated; each that it generated is a response."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from mill.api.errors import MissingPackage, RunError
from mill.api.message import MEDIA_KINDS
from mill.api.response import Response
from mill.api.task import Opaque, Sample, TaskType, Value
from mill.api.tools import ERROR, MALFORMED, OK, TIMED_OUT, Tool, ToolCall, ToolResult
from mill.metrics.estimate import Estimate
from mill.store.folder import RunFolder
from mill.store.sample_row import ROUNDS
from mill.store.samples import RunSample
from mill.store.schema import SessionEntry, TaskResult
from mill.support.files import json_text
from mill.support.secrets import redact
from mill.support.terminal import describe
from mill.view.lm_eval_log import Converted, tool_estimate, write_converted
from mill.view.scan import INSPECT, ToolLog

_BATCH = 1 << 20  # bytes of a .eval file, about: each call of inspect_ai reads its whole directory again
_ENDED = {"success": "finished", "cancelled": "interrupted", "error": "failed"}
_WARNINGS = {"started": "the evaluation has not ended", "cancelled": "the evaluation was cancelled"}
_NO_SETTINGS = ("max_connections", "max_retries", "timeout")  # of the generation options: they change no answer
_OUTCOMES = {None: OK, "timeout": TIMED_OUT, "parsing": MALFORMED}
_FINISH = {"max_tokens": "length", "model_length": "length"}
_EXPLAINS = ("explanation", "reason", "metadata")  # of a score
_NUMBERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}


def convert_inspect(log: ToolLog, folder: RunFolder) -> None:
    try:
        from inspect_ai.log import read_eval_log, read_eval_log_sample_summaries, read_eval_log_samples_by_id
    except ImportError:
        raise MissingPackage("a log of inspect_ai", "inspect_ai>=0.3.242", "inspect") from None
    file, zipped = str(log.path.resolve()), log.path.suffix == ".eval"
    try:
        header = read_eval_log(file, header_only=zipped, resolve_attachments=True)
        entries = read_eval_log_sample_summaries(file) if zipped else header.samples or []
    except Exception as error:  # of one of many parsers
        raise RunError(f"{log.path} cannot be read by inspect_ai: {describe(error)}") from error

    def convert(groups: list[list[Any]]) -> list[Converted]:
        found = [entry for group in groups for entry in group]
        try:
            if zipped:
                keys = [(summary.id, summary.epoch) for summary in found]
                found = read_eval_log_samples_by_id(file, keys, resolve_attachments=True)
            epochs = iter(found)
            return [_converted([next(epochs) for _ in group]) for group in groups]
        except Exception as error:  # of one of them: each is read by itself
            if len(groups) > 1:
                return [sample for group in groups for sample in convert([group])]
            return [f"sample {found[0].id}: {describe(error)}"]

    by_id: dict[str, dict[int, Any]] = {str(name): {} for name in header.eval.dataset.sample_ids or ()}
    for entry in entries:
        by_id.setdefault(str(entry.id), {})[entry.epoch] = entry
    groups = [[epochs[number] for number in sorted(epochs)] for epochs in by_id.values() if epochs]
    size = max(1, _BATCH * len(groups) // log.path.stat().st_size)
    samples = (sample for start in range(0, len(groups), size) for sample in convert(groups[start : start + size]))
    write_converted(folder, _about(log, header), _session(header), [(_result(header), samples if groups else None)])


def _result(header: Any) -> TaskResult:
    spec, results, epochs = header.eval, header.results, header.eval.config.epochs or 1
    metrics = estimates(results.scores, epochs, results.completed_samples // epochs) if results else {}
    warnings = [f"the evaluation failed: {header.error.message}"] if header.error else []
    warnings += [_WARNINGS[header.status]] if header.status in _WARNINGS else []
    kind, total = TaskType.GENERATIVE_QA.value, spec.dataset.samples or 0
    return TaskResult(spec.task, kind, spec.task_version, 0, 0, total, errors=0, metrics=metrics, warnings=warnings)


def estimates(scores: Sequence[Any], epochs: int, n: int) -> dict[str, Estimate]:
    """The metrics of all scores; the standard error is that of the accuracy or mean. `n` is the number of samples of scores
    that do not say it, as in logs of older versions."""
    metrics = {}
    for score in scores:
        name = score.name if score.scorer in ("", score.name) else f"{score.scorer}/{score.name}"
        name += f"@{score.reducer}" if epochs > 1 and score.reducer not in (None, "mean") else ""
        values = {metric: found.value for metric, found in score.metrics.items()}
        mean = next((metric for metric in ("accuracy", "mean") if metric in values), None)
        stderr = values.pop("stderr", None) if mean else None
        for metric, value in values.items():
            own, error = (name, stderr) if metric == mean else (f"{name}/{metric}", None)
            metrics[own] = tool_estimate(value, error, score.scored_samples or n)
    return metrics


def _about(log: ToolLog, header: Any) -> dict[str, Any]:
    """inspect_ai names a model `PROVIDER/MODEL`."""
    spec, config = header.eval, header.eval.config
    backend, _, name = spec.model.partition("/")
    arguments = {**spec.model_args, **({"base_url": spec.model_base_url} if spec.model_base_url else {})}
    options = spec.model_generate_config.merge(header.plan.config).model_dump(exclude_none=True)
    settings = {
        "gen_kwargs": {name: value for name, value in options.items() if name not in _NO_SETTINGS},
        "repeats": config.epochs,
        **config.model_dump(include={"epochs_reducer", "limit"}),
        "task_args": spec.task_args,
        "solvers": [step.solver for step in header.plan.steps],
    }
    return {
        "model": {"name": name or backend, "backend": backend, "arguments": redact(arguments), "identity": {}},
        "settings": {name: value for name, value in settings.items() if value not in (None, {}, [])},
        "versions": spec.packages,
        "source": {"tool": INSPECT, "path": str(log.path)},
    }


def _session(header: Any) -> SessionEntry:
    began, completed = header.stats.started_at or header.eval.created, header.stats.completed_at  # both in UTC
    seconds = (datetime.fromisoformat(completed) - datetime.fromisoformat(began)).total_seconds() if completed else 0.0
    tokens = {name: count or 0 for name, count in _tokens(header.stats.model_usage.get(header.eval.model)).items()}
    spent: dict[str, Any] = {"seconds": max(0.0, seconds), **tokens}
    ended = _ENDED.get(header.status, "unfinished")
    return SessionEntry(id=header.eval.eval_id, order=1, started=f"{began[:19]}Z", ended=ended, **spent)


def _tokens(usage: Any) -> dict[str, Any]:
    if usage is None:
        return {}
    prompt = usage.input_tokens + (usage.input_tokens_cache_write or 0) + (usage.input_tokens_cache_read or 0)
    return {"prompt_tokens": prompt, "output_tokens": usage.output_tokens, "reasoning_tokens": usage.reasoning_tokens}


def _converted(epochs: list[Any]) -> Converted:
    """A sample from its epochs."""
    sample, several = epochs[0], len(epochs) > 1
    prompts, before, responses, tools = zip(*map(_dialog, epochs), strict=True)
    prompt = json_text([_as_json(message, media=False) for message in prompts[0]])
    media = any(part.type in MEDIA_KINDS for messages in before for message in messages for part in message.content_list)
    scores = [epoch.scores or {} for epoch in epochs]
    # The answer that the first scorer read, of those that did.
    answers = [next((score.answer for score in found.values() if score.answer is not None), None) for found in scores]
    by_epoch = [{name: value for of, score in found.items() for name, value in _values(of, score)} for found in scores]
    values = {name: [found.get(name) for found in by_epoch] for found in by_epoch for name in found}
    details = [_details(epoch) for epoch in epochs]
    errors = [(f"epoch {epoch.epoch}: " if several else "") + epoch.error.message for epoch in epochs if epoch.error]
    names = [epoch.uuid or f"{epoch.id}/{epoch.epoch}" for epoch in epochs]
    question = sample.input if isinstance(sample.input, str) else None
    doc = {"input": question, "target": sample.target, "choices": sample.choices, "metadata": sample.metadata}
    scored = RunSample(
        Sample(str(sample.id), {name: value for name, value in doc.items() if value not in (None, {})}),
        sample.target[0] if isinstance(sample.target, list) and len(sample.target) == 1 else sample.target,
        prompt,
        [],
        [[f"{name}/{at}" for at in range(max(1, len(found)))] for name, found in zip(names, responses, strict=True)],
        list(responses),
        sent=prompt,
        messages=[list(map(_as_json, messages)) for messages in before] if media or max(map(len, responses)) > 1 else [],
        tools=tools[0],
        noted=frozenset(ROUNDS for epoch in epochs if epoch.limit and epoch.limit.type in ("message", "turn")),
        values=values,
        error=errors[0] if errors else None,
        extracted=answers[0],
        extracted_repeats=answers if several else (),
        choices=sample.choices or (),
        details=details if any(details) else (),
    )
    return scored, _choice_columns(sample.choices or [], answers[0], values)


def _dialog(sample: Any) -> tuple[list[Any], list[Any], list[Response], list[dict[str, Any]]]:
    """The messages before the first and before the last that the model generated, its responses, and its tools."""
    from inspect_ai.model import ChatMessageUser, ModelOutput

    question = [ChatMessageUser(content=sample.input)] if isinstance(sample.input, str) else sample.input
    messages = sample.messages or question
    own = {message.id for message in messages if message.id}
    events = [event for event in sample.events if event.event == "model" and event.output.choices]
    calls = {event.output.message.id: event for event in events if event.output.message.id in own}  # not those of graders
    outputs = {sample.output.message.id: sample.output} if sample.output.choices else {}  # a log may have no events
    outputs |= {name: event.output for name, event in calls.items()}
    generated = [at for at, message in enumerate(messages) if message.role == "assistant" and message.source != "input"]
    responses = [Response(error=sample.error.message)] if sample.error and not generated else []
    for at in generated:
        message = messages[at]
        call = calls.get(message.id or "")
        output = outputs.get(message.id or "", ModelOutput())
        stop = output.choices[0].stop_reason if output.choices else ""
        response = Response(
            text=message.text,
            reasoning=_reasoning(message),
            finish_reason=_FINISH.get(stop, stop) or None,
            seconds=output.time,
            retries=call.retries or 0 if call else 0,
            tool_calls=_tool_calls(message),
            tool_results=_tool_results(_tool_calls(message), messages[at + 1 :]),
            **_tokens(output.usage),
        )
        responses.append(response)
    tools = {tool.name: tool for call in calls.values() for tool in call.tools}.values()
    shown = [Tool(tool.name, tool.description, tool.parameters.model_dump(exclude_none=True)).to_dict() for tool in tools]
    first, last = (generated[0], generated[-1]) if generated else (None, None)
    return messages[:first], messages[:last], responses, shown


def _reasoning(message: Any) -> str | None:
    """What the model wrote before its answer; the summary of it where the provider hides it."""
    parts = [part for part in message.content_list if part.type == "reasoning"]
    texts = [(part.summary or "[redacted]") if part.redacted else part.reasoning or part.summary or "" for part in parts]
    return "\n".join(texts) if texts else None


def _tool_calls(message: Any) -> tuple[ToolCall, ...]:
    calls = getattr(message, "tool_calls", None) or ()
    return tuple(ToolCall.parse(call.function, call.arguments, call.id) for call in calls)


def _tool_results(calls: Sequence[ToolCall], later: Sequence[Any]) -> tuple[ToolResult, ...]:
    """The results of a message's calls, in their order; none where one of them has no result."""
    answers = {answer.tool_call_id: answer for answer in later if answer.role == "tool"}
    results = []
    for call in calls:
        if (answer := answers.get(call.id)) is None:
            return ()
        outcome = _OUTCOMES.get(answer.error and answer.error.type, ERROR)
        results.append(ToolResult(call.name, _text(answer), outcome, call.id))
    return tuple(results)


def _text(message: Any) -> str:
    """Also of a tool that failed."""
    return str(message.text or (message.error.message if message.role == "tool" and message.error else ""))


def _as_json(message: Any, *, media: bool = True) -> dict[str, Any]:
    """A message as `Message.to_json` writes it. With `media`, images, audio and videos are data URLs or addresses."""
    parts = [part for part in message.content_list if part.type != "reasoning"]
    plain = all(part.type == "text" for part in parts)
    shown = {"role": message.role, "content": _text(message) if plain else [_part(part, media) for part in parts]}
    if calls := _tool_calls(message):
        shown["tool_calls"] = [call.message() for call in calls]
    named = {"tool_call_id": message.tool_call_id, "name": message.function} if message.role == "tool" else {}
    return {**shown, **{name: value for name, value in named.items() if value is not None}}


def _part(part: Any, media: bool) -> dict[str, str]:
    if part.type in MEDIA_KINDS:
        source = getattr(part, part.type)
        return {"type": part.type, part.type: source if media or not source.startswith("data:") else f"<{part.type}>"}
    ran = f"{part.name}({part.arguments}): {part.result}" if part.type == "tool_use" else ""  # by the provider
    return {"type": "text", "text": ran or getattr(part, "text", f"<{part.type}>")}


def _values(name: str, score: Any) -> list[tuple[str, Value]]:
    if isinstance(score.value, dict):
        return [(f"{name}/{part}", _value(value)) for part, value in score.value.items()]
    return [(name, Opaque(score.value) if isinstance(score.value, list) else _value(score.value))]


def _value(value: str | int | float | bool | None) -> Value:
    """The number that inspect_ai's metrics take a value for; other texts stay texts. NaN is what was not scored."""
    known = _NUMBERS.get(value, _NUMBERS.get(value.lower())) if isinstance(value, str) else None
    if value is None or known is not None:
        return known
    try:
        number = float(value)
    except (OverflowError, ValueError):
        return Opaque(str(value))
    return Opaque(value) if isinstance(value, str) and not math.isfinite(number) else None if math.isnan(number) else number


def _details(sample: Any) -> dict[str, Any]:
    """Why a sample has its scores."""
    parts = [(name, score, about) for name, score in (sample.scores or {}).items() for about in _EXPLAINS]
    details = {f"{name} {about}": getattr(score, about) for name, score, about in parts}
    details |= {"limit": f"{sample.limit.type} {sample.limit.limit:g}" if sample.limit else None, "uuid": sample.uuid}
    return {name: value for name, value in details.items() if value}


def _choice_columns(choices: Sequence[str], answer: str | None, values: Mapping[str, list[Value]]) -> dict[str, Any]:
    """The columns of multiple choice: the model named a letter, so that there are no log-probabilities."""
    letters = {chr(ord("A") + index): choice for index, choice in enumerate(choices)}
    right = next((found[0] for found in values.values()), None)
    correct = right == 1.0 if right in (0.0, 1.0) else None
    return {"chosen": letters.get((answer or "").strip()), "choice_logprobs": None, "correct": correct} if choices else {}
