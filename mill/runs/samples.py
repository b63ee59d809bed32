"""The samples of a task as lines that pandas and DuckDB read: prompt, target, answers and values side by side."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mill.api.batching import describe
from mill.api.errors import RunError
from mill.api.response import Response, encode_float
from mill.api.storage import json_text, read_lines, write_atomically
from mill.api.task import Sample, Task, Value
from mill.api.validate import parse_json
from mill.execute.sample_state import SampleState
from mill.runs.schema import SampleLine, checked, read_response

_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class SampleRecord:
    """One sample of a run. `keys` and `responses` hold a list for each repeat; `keys` name answers in the record."""

    sample: Sample
    target: Any
    prompt: str
    continuations: list[str]
    keys: list[list[str]]
    responses: list[list[Response]]
    judgements: list[list[str | None]] = field(default_factory=list)
    """For each repeat what the judge wrote; None where it failed. Empty where there was no judge."""

    @property
    def error(self) -> str | None:
        """Why the sample has no score: the first failed or missing answer."""
        for repeat, keys in zip(self.responses, self.keys, strict=True):
            for response in repeat:
                if response.failed:
                    return response.error
            if len(repeat) < len(keys):
                return "not answered"
        return None if self.responses else "not answered"

    @property
    def truncated(self) -> bool:
        return any(response.truncated_tokens for repeat in self.responses for response in repeat)

    @property
    def empty(self) -> bool:
        """Whether an answer has no text, as an instruct model's may without its chat template."""
        return any(response.empty for repeat in self.responses for response in repeat)

    @property
    def filtered(self) -> bool:
        """Whether a server withheld an answer."""
        return any(response.finish_reason == "content_filter" for repeat in self.responses for response in repeat)

    @property
    def cut_short(self) -> bool:
        """Whether an answer ended at its token limit instead of by itself."""
        return any(response.finish_reason == "length" for repeat in self.responses for response in repeat)


@dataclass(frozen=True)
class ScoredSample:
    """A sample with the values of each repeat for every metric, or with the reason why it has none."""

    record: SampleRecord
    values: dict[str, list[Value]]
    error: str | None


def from_state(job: SampleState) -> SampleRecord:
    """A job that ran, or that is about to."""
    task, sample = job.task, job.sample
    if job.rounds:
        keys = [[request.key for request in rounds] for rounds in job.rounds]
        prompt, continuations = job.rounds[0][-1].text, []
    else:
        clones = [request.clones() for request in job.requests]
        keys = [[clone.key for clone in repeat] for repeat in zip(*clones, strict=True)]
        prompt = job.requests[0].text
        continuations = [request.continuation for request in job.requests if request.continuation]
    done = not job.open_requests()
    return SampleRecord(
        sample, task.target(sample), prompt, continuations, keys, job.repeats() if done else [[] for _ in keys]
    )


def score_sample(task: Task, record: SampleRecord) -> ScoredSample:
    """An error is not an answer: a sample with one has no value. Nor has one that the task's scoring fails on."""
    if record.error is not None:
        return ScoredSample(record, {}, record.error)
    try:
        repeats = [_values(task, record, repeat) for repeat in range(len(record.responses))]
        values = {name: [_number(name, found) for found in repeats] for name in metrics_of(task, [record])}
        return ScoredSample(record, values, None)
    except (Exception, SystemExit) as error:  # other people's scoring code: its failure is this sample's, not the run's
        return ScoredSample(record, {}, f"scoring failed: {describe(error)}")


def metrics_of(task: Task, records: Iterable[SampleRecord]) -> dict[str, str]:
    """A task's metrics, with those of its judge where there was one."""
    judged = task.judge is not None and any(record.judgements for record in records)
    return {**task.metrics, **(task.judge.metrics if task.judge is not None and judged else {})}


def _values(task: Task, record: SampleRecord, repeat: int) -> Mapping[str, Value]:
    responses = record.responses[repeat]
    found = task.score(record.sample, responses)
    if task.judge is None or not record.judgements:
        return found
    gold = task.gold_verdict(record.sample, responses)
    return {**found, **task.judge.values(record.judgements[repeat], gold)}


def _number(name: str, found: Mapping[str, Value]) -> Value:
    """A metric's value of one repeat as a number, or as the pair of numbers that a perplexity needs."""
    if name not in found:
        raise ValueError(f"score() gave no {name!r}, only {', '.join(found) or 'nothing'}")
    value = found[name]
    if value is None:
        return None
    parts = tuple(float(part) for part in value) if isinstance(value, (tuple, list)) else (float(value),)
    if any(math.isnan(part) for part in parts):
        raise ValueError(f"{name} is NaN")
    return (parts[0], parts[1]) if len(parts) == 2 else parts[0]


def write_samples(file: Path, task: str, scored: Iterable[ScoredSample], root: Path) -> None:
    """`root` is the folder that a person named: no link below it is followed."""
    write_atomically(file, "".join(f"{_line(task, one)}\n" for one in scored), root=root)


def _line(task: str, scored: ScoredSample) -> str:
    """Lone surrogates are written out, and the line says so: as escapes of JSON they would keep DuckDB from reading it."""
    data = _to_dict(task, scored)
    text = json_text(data)
    return json_text({**_mapped(data, _escape), "escaped": True}) if _SURROGATE.search(text) else text


def read_samples(file: Path) -> list[SampleRecord]:
    """Samples as a run wrote them, with the answers they had then. Two lines of one sample are refused."""
    found: dict[str | int, SampleRecord] = {}
    try:
        for number, (_, line) in enumerate(read_lines(file), 1):
            if line.strip():
                where = f"{file}, line {number},"
                sample = _read_line(parse_json(line, where, RunError), where)
                if sample.sample.id in found:
                    raise RunError(f"{where} is a second line of sample {sample.sample.id}: remove one of them")
                found[sample.sample.id] = sample
    except FileNotFoundError:
        raise RunError(f"cannot read {file}: there is no such file; `mill eval` writes it") from None
    return list(found.values())


def _to_dict(task: str, scored: ScoredSample) -> dict[str, Any]:
    record = scored.record
    return {
        "task": task,
        "id": record.sample.id,
        "target": record.target,
        "prompt": record.prompt,
        "continuations": record.continuations,
        "responses": [[response.to_dict() for response in repeat] for repeat in record.responses],
        "values": {name: [_plain(value) for value in values] for name, values in scored.values.items()},
        "error": scored.error,
        **({"judgements": record.judgements} if record.judgements else {}),
        "truncated": record.truncated,
        "keys": record.keys,
        "doc": record.sample.doc,
    }


def _read_line(line: Any, where: str) -> SampleRecord:
    checked(line, SampleLine, where)
    if line.get("escaped"):
        line = _mapped(line, _unescape)
    keys, answers = line["keys"], line["responses"]
    if not keys or not all(keys):
        raise RunError(f"{where} is not valid: keys: a list of keys for each repeat is needed")
    if len(answers) != len(keys) or any(len(given) > len(asked) for given, asked in zip(answers, keys, strict=True)):
        raise RunError(f"{where} is not valid: responses: an answer for each of the keys is needed")
    responses = [[read_response(response, where) for response in repeat] for repeat in answers]
    sample = Sample(line["id"], line["doc"])
    read = (line["target"], line["prompt"], line["continuations"], keys, responses)
    return SampleRecord(sample, *read, judgements=line.get("judgements", []))


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


def _plain(value: Value) -> Any:
    if value is None:
        return None
    return [encode_float(part) for part in value] if isinstance(value, (tuple, list)) else encode_float(float(value))
