"""The samples of a task: scored, written to samples/<task>.jsonl as flat rows (see sample_rows.py), and read back."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

import msgspec

from mill.api.batching import describe
from mill.api.errors import RunError
from mill.api.printing import utf8
from mill.api.request import GENERATE, LOGLIKELIHOOD, Request
from mill.api.response import Response
from mill.api.secrets import scrub
from mill.api.storage import json_text, read_lines, write_atomically
from mill.api.task import Opaque, Sample, Task, Value
from mill.api.validate import parse_json
from mill.execute.sample_state import SampleState
from mill.runs.folder import RunFolder
from mill.runs.media_files import media_entries
from mill.runs.sample_rows import run_columns, sample_row
from mill.runs.sample_schema import SampleLine, checked, read_response
from mill.runs.sample_status import NOT_ANSWERED
from mill.tasks import hooks

_SHOWN = ("prompts", "messages", "tools", "added_tools", "media", "max_rounds_reached")  # for people who read the sample
_SURROGATE = re.compile("[\ud800-\udfff]")
_encode = msgspec.json.Encoder().encode
_PLAIN_TYPES = {str, bool, int, type(None)}
_KEY_TYPES = {str}


@dataclass(frozen=True)
class SampleRecord:
    """One sample of a run. `keys` and `responses` have a list for each repeat; a key names a response in the record.

    `prompt` is the same for every model; `sent` is what the model got, after its chat template.
    """

    sample: Sample
    target: Any
    prompt: str
    continuations: list[str]
    keys: list[list[str]]
    responses: list[list[Response]]
    judgements: list[list[str | None]] = field(default_factory=list)
    """For each repeat the text of each judgement; None where the judge failed. Empty where there was no judge."""
    sent: str = ""
    """Empty where it is not known, as before the run."""
    prompts: list[str] = field(default_factory=list)
    """Where a sample's texts are generated from different prompts: what the model got for each response."""
    messages: list[list[dict[str, Any]]] = field(default_factory=list)
    """Of a dialog: for each repeat those of the last round, for people who read the sample."""
    tools: list[dict[str, Any]] = field(default_factory=list)
    """Those of its first request."""
    added_tools: list[dict[str, Any]] = field(default_factory=list)
    """Of a dialog: those that came in a later round."""
    media: list[dict[str, str]] = field(default_factory=list)
    """The images, audio and videos of its prompt; see media_files.py."""
    max_rounds_reached: bool = False
    """Whether a dialog ended at the limit of rounds before it was over."""

    @property
    def error(self) -> str | None:
        """Why the sample has no score: the first failed or missing response."""
        for repeat, keys in zip(self.responses, self.keys, strict=True):
            for response in repeat:
                if response.failed:
                    return response.error
            if len(repeat) < len(keys):
                return NOT_ANSWERED
        return None if self.responses else NOT_ANSWERED

    @property
    def truncated(self) -> bool:
        return any(response.truncated_tokens for repeat in self.responses for response in repeat)

    @property
    def empty(self) -> bool:
        """Whether a response has no text, as an instruct model's may without its chat template."""
        return any(response.empty for repeat in self.responses for response in repeat)

    @property
    def truncated_reasoning(self) -> bool:
        """Whether a response ended inside of its reasoning, without an answer."""
        return any(response.truncated_reasoning for repeat in self.responses for response in repeat)

    @property
    def filtered(self) -> bool:
        """Whether the server withheld a response."""
        return any(response.finish_reason == "content_filter" for repeat in self.responses for response in repeat)

    @property
    def cut_short(self) -> bool:
        """Whether a response ended at its token limit."""
        return any(response.finish_reason == "length" for repeat in self.responses for response in repeat)


@dataclass(frozen=True)
class ScoredSample:
    """A sample with the values of each repeat for every metric, or with the reason why it has none."""

    record: SampleRecord
    values: dict[str, list[Value]]
    error: str | None
    category: str = ""
    extracted: Any = None
    """The answer that the task read from the first repeat."""
    extracted_repeats: Sequence[Any] = ()
    """Those of all repeats, where there are several."""
    choices: Sequence[str] = ()
    """The choices that were scored, where the task is multiple choice by log-probability."""
    aggregations: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Metric name -> the registered metric that sums up its values."""
    details: Sequence[Mapping[str, Any]] = ()
    """For each repeat why it has these values, where the task knows more than them."""


def from_state(state: SampleState, sent: Sequence[str] = ()) -> SampleRecord:
    """A sample that ran, or that is about to; `sent` are its `prompt_requests` as the model got them."""
    task, sample = state.task, state.sample
    if state.rounds:
        keys = [[request.key for request in rounds] for rounds in state.rounds]
        continuations = []
    else:
        clones = [request.clones() for request in state.requests]
        keys = [[clone.key for clone in repeat] for repeat in zip(*clones, strict=True)]
        continuations = [request.continuation for request in state.requests if request.continuation]
    responses = [[] for _ in keys] if state.open_requests() else state.repeats()
    shown = prompt_requests(state)
    return SampleRecord(
        sample,
        task.target(sample),
        shown[-1].text,
        continuations,
        keys,
        responses,
        sent=sent[-1] if sent else "",
        prompts=list(sent) if len(sent) > 1 else [],
        messages=[_messages(rounds[-1]) for rounds in state.rounds],
        tools=[tool.to_dict() for tool in state.first_request.tools],
        added_tools=[tool.to_dict() for tool in shown[-1].tools if tool not in state.first_request.tools],
        media=media_entries(shown[-1].media),
        max_rounds_reached=state.ended_at_limit(),
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


def score_sample(task: Task, record: SampleRecord) -> ScoredSample:
    """An error is not an answer: a sample with one has no value. Nor has one that the task's scoring fails on."""
    sample = record.sample
    category = str(hooks.attempt(lambda: task.category(sample)) or "")
    choices = list(map(str, hooks.attempt(lambda: task.choice_texts(sample)) or ()))
    if not choices and task.kind == LOGLIKELIHOOD and len(record.continuations) > 1:
        choices = record.continuations
    if record.error is not None:
        return ScoredSample(record, {}, record.error, category, choices=choices)
    try:
        names = metrics_of(task, [record])
        repeats = [_values(task, record, repeat) for repeat in range(len(record.responses))]
        values = {name: [_number(name, found) for found in repeats] for name in names}
        if task.open_metrics:
            more = dict.fromkeys(name for found in repeats for name in found if name not in values)
            values |= {name: [_number(name, {name: None, **found}) for found in repeats] for name in more}
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # third-party scoring code: its failure is this sample's, not the run's
        return ScoredSample(record, {}, f"scoring failed: {describe(error)}", category, choices=choices)
    extracted = [hooks.attempt(partial(task.extracted, sample, repeat)) for repeat in record.responses]
    several = extracted if len(extracted) > 1 else ()
    details = [hooks.attempt(partial(task.details, sample, repeat)) or {} for repeat in record.responses]
    shown = details if any(details) else ()
    return ScoredSample(record, values, None, category, extracted[0], several, choices, names, shown)


def metrics_of(task: Task, records: Iterable[SampleRecord]) -> dict[str, str]:
    """A task's metrics, with those of its judge where there was one."""
    judged = task.judge is not None and any(record.judgements for record in records)
    return {**task.metrics, **(task.judge.metrics if task.judge is not None and judged else {})}


def _values(task: Task, record: SampleRecord, repeat: int) -> Mapping[str, Value]:
    responses = record.responses[repeat]
    if task.judge is None or not record.judgements:
        return task.score(record.sample, responses)
    return task.score_judged(record.sample, responses, record.judgements[repeat])


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


def write_samples(folder: RunFolder, model: str, task: str, scored: Iterable[ScoredSample], *, sync: bool = True) -> None:
    """The samples of a task, as lines of its file in a run's folder; `model` is the model's name."""
    run = run_columns(model, folder)
    write_lines(folder, task, (row_line(sample_row(run, task, one)) for one in scored), sync=sync)


def write_lines(folder: RunFolder, task: str, lines: Iterable[str], *, sync: bool = True) -> None:
    """The file of a task's samples from its lines, of which one at a time is in memory."""

    def fill(handle: IO[bytes]) -> None:
        for line in lines:
            handle.write(utf8(scrub(line)))
            handle.write(b"\n")

    write_atomically(folder.samples_file(task), fill, root=folder.root, sync=sync)


def row_line(data: Mapping[str, Any]) -> str:
    """A row as JSON. Lone surrogates are written out and the line is marked: DuckDB reads no line with their escapes."""
    with contextlib.suppress(UnicodeEncodeError, OverflowError, RecursionError, TypeError):
        line = _encode(data)  # which refuses what contains itself
        if is_plain(data):
            line = msgspec.json.format(line, indent=0)  # both in a fifth of the time of json.dumps
            return line.decode()
    text = json_text(data)
    if not _SURROGATE.search(text):
        return text
    return json_text({**_mapped(data, _escape), "escaped": True})


def is_plain(*values: Any) -> bool:
    """Whether values have only the types of JSON, and finite numbers."""
    waiting: list[Iterable[Any]] = [values]
    while waiting:
        for value in waiting.pop():
            kind = type(value)
            if kind is dict and set(map(type, value)) <= _KEY_TYPES:
                waiting.append(value.values())
            elif kind is list or kind is tuple:
                waiting.append(value)
            elif kind not in _PLAIN_TYPES and not (kind is float and math.isfinite(value)):
                return False
    return True


def read_samples(file: Path) -> list[SampleRecord]:
    """Samples as a run wrote them, with their responses. Two lines of one sample are refused."""
    samples: dict[str | int, SampleRecord] = {}
    for where, line in read_rows(file):
        sample = _read_line(line, where)
        if sample.sample.id in samples:
            raise RunError(f"{where} is a second line of sample {sample.sample.id}: remove one of them")
        samples[sample.sample.id] = sample
    return list(samples.values())


def read_rows(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The lines of a samples file, one at a time, each with the words that name it in a message."""
    try:
        for number, (_, line) in enumerate(read_lines(file), 1):
            if line.strip():
                where = f"{file}, line {number},"
                row = parse_json(line, where, RunError, strict=True)
                checked(row, SampleLine, where)
                yield where, unescaped(row)
    except FileNotFoundError:
        raise RunError(f"cannot read {file}: there is no such file; `mill eval` writes it") from None


def _read_line(line: Any, where: str) -> SampleRecord:
    keys, given = line["keys"], line["responses"]
    if not keys or not all(keys):
        raise RunError(f"{where} is not valid: keys: a list of keys for each repeat is needed")
    if len(given) != len(keys) or any(len(repeat) > len(names) for repeat, names in zip(given, keys, strict=True)):
        raise RunError(f"{where} is not valid: responses: a response for each of the keys is needed")
    responses = [[read_response(response, where) for response in repeat] for repeat in given]
    for number, repeat in enumerate(responses):
        for index, response in enumerate(repeat):
            if response.tool_results and len(response.tool_results) != len(response.tool_calls):
                path = f"responses[{number}][{index}].tool_results"
                raise RunError(f"{where} is not valid: {path}: a result for each of the calls is needed")
    sample = Sample(line["id"], line["doc"])
    sent, judgements = line["prompt"], line.get("judgements", [])
    if judgements and len(judgements) != len(keys):
        raise RunError(f"{where} is not valid: judgements: a list for each repeat is needed")
    prompt = line.get("unrendered") or sent
    shown = {name: line[name] for name in _SHOWN if name in line}
    return SampleRecord(
        sample, line["target"], prompt, line["continuations"], keys, responses, judgements, sent=sent, **shown
    )


def unescaped(line: Any) -> Any:
    """A line whose lone surrogates were written out, with them; any other line as it is."""
    return _mapped(line, _unescape) if line.get("escaped") else line


def _mapped(data: Any, change: Callable[[str], str]) -> Any:
    """The same data with every text in it changed."""
    if isinstance(data, str):
        return change(data)
    if isinstance(data, Mapping):
        return {_mapped(key, change): _mapped(value, change) for key, value in data.items()}
    return [_mapped(value, change) for value in data] if isinstance(data, (list, tuple)) else data


def _escape(text: str) -> str:
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text.replace("\\", "\\\\"))


def _unescape(text: str) -> str:
    return re.sub(r"\\(?:\\|u(d[89a-f][0-9a-f]{2}))", lambda found: chr(int(found[1], 16)) if found[1] else "\\", text)
