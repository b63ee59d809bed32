"""Runs as logs of inspect_ai: one `.eval` file for each task, which `read_eval_log` and `inspect view` open.

A repeat is an epoch, a metric is a scorer. Samples that are not answered yet are left out.
"""

from __future__ import annotations

import contextlib
import functools
import json
import operator
import tempfile
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from mill.api.response import Response
from mill.api.tools import MALFORMED, OK, TIMED_OUT, ToolResult
from mill.export.run import (
    FAILED,
    FINISHED,
    ExportedRun,
    clean,
    is_number,
    repeat_values,
    shown_text,
    target_text,
)
from mill.export.target import Exporter
from mill.report.collect import first_rows, sampled_sentences
from mill.store.sample_row import PENDING, SampleRow
from mill.store.samples import RunSample, sample_of
from mill.store.schema import TaskResult
from mill.support.files import read_bytes, short_name, slug, write_atomically
from mill.support.terminal import utf8

Message = Mapping[str, Any]
"""As `mill.api.message.Message.to_json` writes it."""
_STATUS = {FINISHED: "success", FAILED: "error"}
_OPTIONS = ("temperature", "top_p", "top_k", "seed", "frequency_penalty", "presence_penalty")


def write_inspect(runs: Sequence[ExportedRun], folder: Path, *, samples: bool = True) -> list[Path]:
    from inspect_ai.log import write_eval_log

    files = []
    for run in runs:
        for task in run.tasks:
            name = short_name(slug(task)).replace("_", "-")
            file = folder / f"{run.started:%Y-%m-%dT%H-%M-%S}-00-00_{name}_{task_id(run, task)}.eval"
            with tempfile.TemporaryDirectory() as draft:  # inspect_ai writes to a path alone
                write_eval_log(eval_log(run, task, samples=samples), str(Path(draft) / file.name), format="eval")
                write_atomically(file, read_bytes(Path(draft) / file.name), root=folder)
            files.append(file)
    return files


def task_id(run: ExportedRun, task: str) -> str:
    """The same for each export of this task of this run."""
    return blake2b(utf8(f"{run.uid} {task}"), digest_size=11).hexdigest()


def eval_log(run: ExportedRun, task: str, *, samples: bool) -> Any:
    """An `EvalLog` of one task."""
    from inspect_ai.log import EvalLog, EvalPlan, EvalPlanStep, EvalStats
    from inspect_ai.model import ModelUsage

    found = inspect_samples(run, task)
    used = [usage for sample in found for usage in sample.model_usage.values()]
    usage = {model_name(run): functools.reduce(operator.add, used, ModelUsage())} if found else {}
    result = run.results.tasks.get(task)
    return EvalLog(
        status=_STATUS.get(run.status, "cancelled") if result is None else "success",
        eval=_spec(run, task, [sample.id for sample in found]),
        plan=EvalPlan(steps=[EvalPlanStep(solver="mill")]),
        results=None if result is None else _results(run, result),
        stats=EvalStats(started_at=run.started.isoformat(), completed_at=run.ended.isoformat(), model_usage=usage),
        samples=found if samples else None,
    )


def _spec(run: ExportedRun, task: str, ids: Sequence[str]) -> Any:
    from inspect_ai.log import EvalConfig, EvalDataset, EvalSpec
    from inspect_ai.model import GenerateConfig

    entry, settings, result = run.manifest["tasks"][task], run.settings, run.results.tasks.get(task)
    text = sampled_sentences([result]) if result is not None else ""
    sampled = {"sampled": clean(text)} if text else {}
    given = settings.get("gen_kwargs") or {}
    options = {name: given[name] for name in _OPTIONS if isinstance(given.get(name), (int, float))}
    limit = given.get("max_gen_toks")
    if isinstance(limit, int):
        options["max_tokens"] = limit
    repeats = settings.get("repeats")
    return EvalSpec(
        eval_id=task_id(run, task),
        run_id=run.uid,
        created=run.started.isoformat(),
        task=clean(task),
        task_id=task_id(run, task),
        task_version=entry.get("version", 0),
        task_args={"n_shots": entry.get("n_shots", 0)},
        dataset=EvalDataset(name=clean(task), samples=entry["total"], sample_ids=list(dict.fromkeys(ids))),
        model=model_name(run),
        model_args=run.arguments,
        model_generate_config=GenerateConfig(**options),
        config=EvalConfig(
            limit=first_rows([result]) if result is not None else None, epochs=repeats if isinstance(repeats, int) else 1
        ),
        packages=run.versions,
        metadata={"mill": {"run": run.uid, "status": run.status, "settings": settings, **sampled}},
    )


def _results(run: ExportedRun, result: TaskResult) -> Any:
    from inspect_ai.log import EvalMetric, EvalResults, EvalScore

    count = run.counts[result.task]
    scores = []
    for name, estimate in result.metrics.items():
        values = {"mean": estimate.value, "stderr": estimate.stderr, "low": estimate.low, "high": estimate.high}
        metrics = {key: EvalMetric(name=key, value=value) for key, value in values.items() if value is not None}
        scores.append(
            EvalScore(
                name=clean(name),
                scorer=clean(name),
                scored_samples=estimate.n,
                unscored_samples=max(0, count.planned - estimate.n),
                metrics=metrics,
            )
        )
    return EvalResults(
        total_samples=count.planned,
        completed_samples=count.done - count.failed,
        scores=scores,
        metadata={"failed": count.failed, "unanswered": count.unanswered, "warnings": [*map(clean, result.warnings)]},
    )


_STOP = {"stop": "stop", "length": "max_tokens", "content_filter": "content_filter", "tool_calls": "tool_calls"}
_ERRORS = {TIMED_OUT: "timeout", MALFORMED: "parsing"}
_DETAILS = ("category", "flags", "choice_logprobs", "details", "judgements", "media")


def model_name(run: ExportedRun) -> str:
    """`PROVIDER/MODEL`, as inspect_ai names models."""
    return f"{run.backend}/{run.model}" if run.backend else run.model


def inspect_samples(run: ExportedRun, task: str) -> list[Any]:
    """An `EvalSample` for each repeat of each sample, but of those without a response yet."""
    found = []
    for row in run.rows(task):
        if row.status != PENDING:
            sample = sample_of(row)
            found += [_sample(run, row, sample, repeat) for repeat in range(len(sample.responses))]
    return found


def _sample(run: ExportedRun, row: SampleRow, sample: RunSample, repeat: int) -> Any:
    from inspect_ai.log import EvalError, EvalSample

    responses, error = sample.responses[repeat], row.error
    messages, prompt = _messages(row, sample, repeat)
    usage = [found for response in responses if (found := _response_usage(response)) is not None]
    seconds = [response.seconds for response in responses if response.seconds is not None]
    shown = {name: value for name in _DETAILS if (value := getattr(row, name))}
    scores = [response.score for response in responses if response.score is not None]
    return EvalSample(
        id=str(row.id),
        epoch=repeat + 1,
        input=prompt[0].text if len(prompt) == 1 and prompt[0].role == "user" else prompt,
        choices=row.choices or None,
        target=target_text(row),
        messages=messages,
        output=_output(responses, messages, run.model),
        scores=_scores(row, sample, repeat) if error is None else None,
        metadata={**shown, **({"logprobs": scores} if scores else {}), "doc": row.doc},
        model_usage={model_name(run): functools.reduce(operator.add, usage)} if usage else {},
        total_time=sum(seconds) if seconds else None,
        error=None if error is None else EvalError(message=error, traceback=error, traceback_ansi=error),
    )


def _messages(row: SampleRow, sample: RunSample, repeat: int) -> tuple[list[Any], list[Any]]:
    """All messages of a repeat, and those that were given to the model at first. The last messages of the assistant are
    responses, with the results of their calls behind them; earlier ones are examples."""
    given, responses = _messages_before(sample, repeat), sample.responses[repeat]
    before = [_message(message) for message in given]
    answers = [index for index, message in enumerate(before) if message.role == "assistant"]
    generated = answers[len(answers) - (len(responses) - 1) :] if sample.messages else []
    for index, response in zip(generated, responses, strict=False):
        ids = [str(call.get("id") or "") for call in given[index].get("tool_calls") or ()]
        answer, results = _answer(response, response.text or "", ids), _tool_results(response, ids)
        before[index] = answer
        for offset, result in enumerate(results, index + 1):
            if offset < len(before) and before[offset].role == "tool":
                before[offset] = result
    first = generated[0] if generated else len(before)
    if not responses or responses[-1].failed:
        return before, before[:first]
    text = shown_text(responses)
    answer = _answer(responses[-1], text if text is not None else row.chosen or "")
    return [*before, answer, *_tool_results(responses[-1])], before[:first]


def _messages_before(one: RunSample, repeat: int) -> list[Message]:
    """The messages that the last response of a repeat answers: of a dialog, those that were sent to a server as JSON, or one
    of the user."""
    if repeat < len(one.messages):
        return list(one.messages[repeat])
    if one.sent.startswith("[{"):
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(one.sent)
            if isinstance(found, list) and all(isinstance(one, dict) and {"role", "content"} <= one.keys() for one in found):
                return found
    return [{"role": "user", "content": one.sent}]


def _message(message: Message) -> Any:
    """A message of a prompt or of an earlier round; images, audio and videos are their names."""
    from inspect_ai.model import ChatMessageAssistant, ChatMessageSystem, ChatMessageTool, ChatMessageUser

    content, role = message.get("content"), message.get("role")
    text = str(content or "")
    if isinstance(content, list):
        parts = [(str(part.get("type", "text")), part) for part in content if isinstance(part, Mapping)]
        named = ((kind, str(part.get(kind) or "")) for kind, part in parts)
        text = "\n".join(shown if kind == "text" else f"<{kind} {shown}>".replace(" >", ">") for kind, shown in named)
    if role == "assistant":
        return ChatMessageAssistant(content=text, source="input")
    if role == "tool":
        return ChatMessageTool(content=text, tool_call_id=message.get("tool_call_id"), function=message.get("name"))
    return ChatMessageSystem(content=text) if role == "system" else ChatMessageUser(content=text)


def _answer(response: Response, text: str, ids: Sequence[str] = ()) -> Any:
    """A response as a message; `ids` are those of its calls in the messages of the next round."""
    from inspect_ai.model import ChatMessageAssistant, ContentReasoning, ContentText
    from inspect_ai.tool import ToolCall as InspectToolCall

    reasoning = [] if response.reasoning is None else [ContentReasoning(reasoning=response.reasoning)]
    content = [*reasoning, ContentText(text=text)] if reasoning else text
    calls = [
        InspectToolCall(
            id=call_id,
            function=call.name,
            arguments=dict(call.arguments or {}),
            parse_error=None if call.arguments is not None else f"the arguments are no JSON object: {call.text}",
        )
        for call, call_id in zip(response.tool_calls, _call_ids(response, ids), strict=True)
    ]
    return ChatMessageAssistant(content=content, source="generate", tool_calls=calls or None)


def _tool_results(response: Response, ids: Sequence[str] = ()) -> list[Any]:
    from inspect_ai.model import ChatMessageTool
    from inspect_ai.tool import ToolCallError

    def message(result: ToolResult, call_id: str) -> Any:
        error = None if result.outcome == OK else ToolCallError(_ERRORS.get(result.outcome, "unknown"), result.output)
        return ChatMessageTool(content=result.output, tool_call_id=call_id, function=result.name, error=error)

    return [message(*one) for one in zip(response.tool_results, _call_ids(response, ids), strict=False)]


def _call_ids(response: Response, ids: Sequence[str]) -> list[str]:
    if len(ids) == len(response.tool_calls):
        return list(ids)
    return [call.id or str(index) for index, call in enumerate(response.tool_calls)]


def _output(responses: Sequence[Response], messages: list[Any], model: str) -> Any:
    from inspect_ai.model import ChatCompletionChoice, ModelOutput

    answers = [message for message in messages if message.role == "assistant" and message.source == "generate"]
    if not responses or responses[-1].failed or not answers:
        error = next((response.error for response in responses if response.failed), None)
        return ModelOutput(model=model, error=error)
    last = responses[-1]
    reason: Any = _STOP.get(last.finish_reason or "", "unknown")
    choices = [ChatCompletionChoice(message=answers[-1], stop_reason=reason)]
    return ModelOutput(model=model, choices=choices, usage=_response_usage(last), time=last.seconds)


def _response_usage(response: Response) -> Any:
    from inspect_ai.model import ModelUsage

    if response.prompt_tokens is None and response.output_tokens is None:
        return None
    prompt, output = response.prompt_tokens or 0, response.output_tokens or 0
    return ModelUsage(
        input_tokens=prompt,
        output_tokens=output,
        total_tokens=prompt + output,
        reasoning_tokens=response.reasoning_tokens,
    )


def _scores(row: SampleRow, sample: RunSample, repeat: int) -> dict[str, Any]:
    """Metrics without a value for this sample have no score."""
    from inspect_ai.scorer import Score

    extracted = sample.extracted_repeats or [sample.extracted]
    answer = str(extracted[repeat]) if repeat < len(extracted) and extracted[repeat] is not None else None
    values = {name: _score_value(value) for name, value in repeat_values(row, repeat).items()}
    return {name: Score(value=value, answer=answer) for name, value in values.items() if value is not None}


def _score_value(value: Any) -> Any:
    if is_number(value):
        return float(value)
    if isinstance(value, list):
        return [_score_value(one) for one in value]
    return {str(name): _score_value(one) for name, one in value.items()} if isinstance(value, dict) else value


EXPORTER = Exporter(
    name="inspect",
    about="a `.eval` log for each task, for `inspect view` and `read_eval_log`",
    write=write_inspect,
    package="inspect_ai",
    extra="inspect",
)
