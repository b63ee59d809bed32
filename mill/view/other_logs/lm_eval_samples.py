"""Samples that lm-eval logged. A document has a line for each filter of its task, far from each other: lines are found by
their offsets, so that one document at a time is in memory."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from msgspec import Struct

from mill.api.errors import RunError
from mill.api.response import Response
from mill.api.task import Opaque, Sample, Value
from mill.store.samples import RunSample
from mill.support.files import MOST_LINE, open_regular, read_lines
from mill.support.validate import convert, parse_json
from mill.view.other_logs.write import BrokenSample, ConvertedSample


class LmEvalCount(Struct):
    original: int
    effective: int


class LmEvalResults(Struct, rename={"n_shot": "n-shot", "n_samples": "n-samples"}):
    """results_DATE.json. `results` has tasks and groups."""

    results: dict[str, dict[str, Any]]
    group_subtasks: dict[str, list[str]] = {}
    configs: dict[str, dict[str, Any]] = {}
    versions: dict[str, int | float | str | None] = {}
    n_shot: dict[str, int | str | None] = {}
    n_samples: dict[str, LmEvalCount] = {}
    config: dict[str, Any] = {}
    date: float | None = None
    lm_eval_version: str | None = None
    transformers_version: str | None = None
    git_hash: str | None = None
    model_source: str | None = None
    model_name: str | None = None
    system_instruction: str | None = None
    chat_template: Any = None
    fewshot_as_multiturn: bool | None = None
    total_evaluation_time_seconds: str | float | None = None
    task_hashes: dict[str, str] = {}


class LmEvalSample(Struct):
    """A line of samples_TASK_DATE.jsonl: a document with one of the task's filters. Metrics are further fields.

    `arguments` and `resps` have an entry for each request; an entry of `resps` has a response for each repeat. Numbers
    in responses are texts. Older versions, such as 0.4.3, do not name the filter: the lines of a document are in the order
    of the task's filters.
    """

    doc_id: int | str
    doc: Any
    target: Any
    arguments: dict[str, dict[str, Any]] | list[list[Any]]
    resps: list[Any]
    filtered_resps: list[Any]
    filter: str | None = None
    metrics: list[str] | None = None


_DOC_ID = re.compile(rb'\{"doc_id": (\d+),')
_FIELDS = {*LmEvalSample.__struct_fields__, "doc_hash", "prompt_hash", "target_hash"}
_NO_FILTER = "none"

Line = tuple[int, int]  # number and offset
Read = tuple[LmEvalSample, Mapping[str, Any]]  # a line, and all of its fields


def read_lm_eval_samples(file: Path, task: str, config: Mapping[str, Any]) -> Iterator[ConvertedSample | BrokenSample]:
    """The documents of a samples file in their order; `config` is the task's, as in the results."""
    try:
        documents, broken = _documents(file)
        handle = open_regular(file)
    except FileNotFoundError as error:
        raise RunError(f"cannot read {file}: there is no such file") from error
    yield from broken
    with handle:
        for lines in documents.values():
            try:
                found = [_read(handle, file, line) for line in lines]
                names = _filters(found, config)
                yield _sample({name: one for name, one in zip(names, found, strict=True) if name is not None}, task, config)
            except (RunError, RecursionError) as error:
                yield BrokenSample(str(error))
                continue
            for (number, _), name in zip(lines, names, strict=True):
                if name is None:
                    yield BrokenSample(f"{file}, line {number}, is a second line of its document")


def _filters(found: Sequence[Read], config: Mapping[str, Any]) -> list[str | None]:
    """The filter of each line of a document; None for a second line with the same one."""
    listed = config.get("filter_list")
    order = [one.get("name") for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
    names: list[str | None] = []
    for index, (sample, _) in enumerate(found):
        own = sample.filter if sample.filter is not None else order[index] if index < len(order) else _NO_FILTER
        names.append(None if str(own) in names else str(own))
    return names


def _documents(file: Path) -> tuple[dict[str, list[Line]], list[BrokenSample]]:
    """The lines of each document, and what is no line of a document."""
    documents: dict[str, list[Line]] = {}
    broken = []
    for number, (offset, line) in enumerate(read_lines(file), 1):
        if not line.strip():
            continue
        found = _DOC_ID.match(line)
        try:
            name = found[1].decode() if found else _doc_id(line, f"{file}, line {number},")
        except RunError as error:
            broken.append(BrokenSample(str(error)))
            continue
        documents.setdefault(name, []).append((number, offset))
    return documents, broken


def _doc_id(line: bytes, where: str) -> str:
    return str(convert(parse_json(line, where, RunError), LmEvalSample, where, RunError).doc_id)


def _read(handle: IO[bytes], file: Path, line: Line) -> Read:
    number, offset = line
    where = f"{file}, line {number},"
    try:
        handle.seek(offset, os.SEEK_SET)
        raw = parse_json(handle.readline(MOST_LINE), where, RunError)
    except OSError as error:
        raise RunError(f"cannot read {file}: {error.strerror or error}") from error
    found = convert(raw, LmEvalSample, where, RunError)
    if not _arguments(found) or len(_arguments(found)) != len(found.resps):
        raise RunError(f"{where} is not valid: resps: a list of responses for each of the arguments is needed")
    return found, raw


def _sample(lines: Mapping[str, Read], task: str, config: Mapping[str, Any]) -> ConvertedSample:
    """A document from its lines, by filter. Requests and responses are the same in all of them."""
    first, _ = next(iter(lines.values()))
    arguments = _arguments(first)
    responses = [[_response(arguments[index], one) for one in _repeats(given)] for index, given in enumerate(first.resps)]
    repeats = min(map(len, responses))
    by_repeat = [[one[repeat] for one in responses] for repeat in range(repeats)]
    contexts = [_text(one[0]) for one in arguments]
    continuations = [one[1] for one in arguments if len(one) > 1 and isinstance(one[1], str)]
    choices = _choices(contexts, continuations, config)
    name = str(first.doc_id)
    chosen = _chosen(by_repeat[0], choices)
    sample = RunSample(
        Sample(name, first.doc if isinstance(first.doc, Mapping) else {"doc": first.doc}),
        _target(first, choices, config),
        contexts[0],
        continuations,
        [[f"{task}/{name}/{index}/{repeat}" for index in range(len(arguments))] for repeat in range(repeats)],
        by_repeat,
        sent=contexts[0],
        prompts=contexts if len(set(contexts[: len(choices) or None])) > 1 else [],
        values=_values(lines),
        extracted=chosen.get("chosen") if choices else _extracted(first, arguments),
        choices=choices,
    )
    return ConvertedSample(sample, chosen)


def _arguments(sample: LmEvalSample) -> list[list[Any]]:
    """The arguments of each request: the prompt, and what follows it."""
    if isinstance(sample.arguments, list):
        return [one for one in sample.arguments if one]
    return [list(one.values()) for one in sample.arguments.values() if one]


def _text(prompt: Any) -> str:
    """A prompt; messages for a server are a text in a list of one."""
    one = prompt[0] if isinstance(prompt, list) and len(prompt) == 1 else prompt
    return one if isinstance(one, str) else str(one)


def _repeats(given: Any) -> list[Any]:
    return given if isinstance(given, list) and given else [given]


def _response(arguments: Sequence[Any], given: Any) -> Response:
    """A response of a request: text, or a log-probability, with whether it is greedy where there is a continuation."""
    if len(arguments) > 1 and not isinstance(arguments[1], str):
        return Response(text=given if isinstance(given, str) else str(given))
    parts = given if isinstance(given, list) else [given]
    try:
        score = float(parts[0])
    except (IndexError, TypeError, ValueError, OverflowError):
        return Response(text=given if isinstance(given, str) else str(given))
    return Response(score=score, is_greedy=str(parts[1]) == "True" if len(parts) > 1 else None)


def _choices(contexts: Sequence[str], continuations: Sequence[str], config: Mapping[str, Any]) -> list[str]:
    """The choices of multiple choice, as they were scored. acc_mutual_info scores each again without a prompt."""
    if config.get("output_type") != "multiple_choice" or len(continuations) != len(contexts):
        return []
    half = len(contexts) // 2
    mutual = (
        len(contexts) == 2 * half and half > 0 and not any(contexts[half:]) and continuations[:half] == continuations[half:]
    )
    count = half if mutual and any(contexts[:half]) else len(contexts)
    if len(set(continuations[:count])) > 1 or count == 1:
        delimiter = str(config.get("target_delimiter", " "))
        return [continuation.removeprefix(delimiter) for continuation in continuations[:count]]
    first, last = min(contexts[:count]), max(contexts[:count])  # the choices are parts of the prompts
    shared = next((index for index, one in enumerate(first) if one != last[index]), len(first))
    return [context[shared:] for context in contexts[:count]]


def _chosen(responses: Sequence[Response], choices: Sequence[str]) -> dict[str, Any]:
    """The columns about choices where there are more responses than choices; mill computes them for all others."""
    if not choices:
        return {}
    scores = [response.score for response in responses[: len(choices)]]
    known = [score for score in scores if score is not None and score == score]
    finite = [score if score is not None and abs(score) < float("inf") else None for score in scores]
    return {"chosen": choices[scores.index(max(known))] if known else None, "choice_logprobs": finite}


def _target(sample: LmEvalSample, choices: Sequence[str], config: Mapping[str, Any]) -> Any:
    """The gold answer. That of multiple choice is the text of the choice: lm-eval logs its index, unless the task names a
    field of the document that is a text."""
    target, source = sample.target, config.get("doc_to_target")
    named = sample.doc.get(source) if isinstance(sample.doc, Mapping) and isinstance(source, str) else None
    if isinstance(named, str) or not str(target).isdecimal() or not choices:
        return target
    index = int(str(target)[:9])
    return choices[index] if index < len(choices) else target


def _extracted(sample: LmEvalSample, arguments: Sequence[Sequence[Any]]) -> Any:
    """What the first filter found in a generated text."""
    if len(arguments[0]) < 2 or isinstance(arguments[0][1], str) or not sample.filtered_resps:
        return None
    found = sample.filtered_resps[0]
    return found if isinstance(found, (str, int, float)) else str(found)


def _values(lines: Mapping[str, Read]) -> dict[str, list[Value]]:
    """The metrics of a document, named as in the results: `acc`, or `exact_match,strict-match` with a filter."""
    values: dict[str, list[Value]] = {}
    for filter_name, (sample, raw) in lines.items():
        names = sample.metrics if sample.metrics is not None else [name for name in raw if name not in _FIELDS]
        for name in names:
            if name in raw:
                named = name if filter_name == _NO_FILTER else f"{name},{filter_name}"
                values[named] = [_value(raw[name])]
    return values


def _value(value: Any) -> Value:
    if isinstance(value, (bool, int, float)):
        try:
            return float(value)
        except OverflowError:
            return Opaque(str(value))
    return None if value is None else Opaque(value)
