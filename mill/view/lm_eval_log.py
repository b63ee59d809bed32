"""A results file of lm-eval (0.4.4 and later) as a run of mill, with the samples that it logged. Scores are lm-eval's own.

A document has a line for each filter of its task, far from each other: lines are found by their offsets, so that one
document at a time is in memory."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from msgspec import Struct, structs

from mill.api.errors import RunError
from mill.api.response import Response
from mill.api.task import Opaque, Sample, TaskType, Value
from mill.metrics.estimate import Estimate, around, exact_interval, is_proportion
from mill.metrics.paired import inside
from mill.score.results import MOST_LISTED, count_flags
from mill.store.folder import MANIFEST, RESULTS, RunFolder
from mill.store.sample_row import columns_of, line_of, run_columns, write_lines
from mill.store.samples import RunSample, row_of
from mill.store.schema import BenchmarkResult, SessionEntry, TaskEntry, TaskResult
from mill.support.files import MOST_LINE, open_regular, read_lines
from mill.support.secrets import redact
from mill.support.terminal import warn
from mill.support.validate import convert, parse_json, read_file
from mill.view.scan import LM_EVAL, ToolLog, task_of

_STDERR = "_stderr"
_NO_FILTER = ",none"
_TYPES = {
    "multiple_choice": TaskType.MULTIPLE_CHOICE,
    "loglikelihood": TaskType.MULTIPLE_CHOICE,
    "loglikelihood_rolling": TaskType.PERPLEXITY,
    "generate_until": TaskType.GENERATIVE_QA,
}


def convert_lm_eval(log: ToolLog, folder: RunFolder) -> None:
    found = read_file(log.path, LmEvalResults, RunError)
    samples = {task_of(file): file for file in log.files[1:]}
    # The tasks, without groups: those have subtasks, or none of what a task has.
    known = found.configs.keys() | found.n_samples.keys() | samples.keys()
    names = [name for name in found.results if name in known] + [name for name in samples if name not in found.results]
    results = {name: _result(name, found) for name in names}
    tasks = [
        (result, read_lm_eval_samples(samples[name], name, found.configs.get(name, {})) if name in samples else None)
        for name, result in results.items()
    ]
    write_converted(folder, _about(log, found), _session(found), tasks, _benchmarks(found, results))


Converted = tuple[RunSample, Mapping[str, Any]] | str
"""A sample with the columns that replace those that mill computes of its own samples; or why it cannot be read."""


def write_converted(
    folder: RunFolder,
    about: Mapping[str, Any],
    session: SessionEntry,
    tasks: Iterable[tuple[TaskResult, Iterable[Converted] | None]],
    benchmarks: Iterable[BenchmarkResult] = (),
) -> None:
    """Write a log of another tool as a run: the samples, one at a time, then results.json and manifest.json. `about` is
    manifest.json without tasks and sessions, samples are None where none are logged, and benchmarks are read last."""
    results, entries = {}, {}
    for result, samples in tasks:
        if samples is None:
            result.warnings.append("its samples are not in the log")
        else:
            writer = _SamplesWriter(result)
            writer.write(samples, folder, about["model"]["name"])
            session.computed += writer.responses
        result.total = max(result.total, result.n)
        session.failed += result.errors
        results[result.task], entries[result.task] = result.to_dict(), asdict(_entry(result))
    session.requested = session.computed
    folder.write(RESULTS, {"tasks": results, "benchmarks": {mean.benchmark: mean.to_dict() for mean in benchmarks}})
    folder.write(MANIFEST, {**about, "fresh": False, "tasks": entries, "sessions": [asdict(session)]})


def _result(name: str, found: LmEvalResults) -> TaskResult:
    count, shots, version = found.n_samples.get(name), found.n_shot.get(name), found.versions.get(name)
    n = count.effective if count else 0
    return TaskResult(
        name,
        _TYPES.get(str(found.configs.get(name, {}).get("output_type")), TaskType.GENERATIVE_QA).value,
        version if isinstance(version, (int, str)) else "" if version is None else str(version),
        shots if isinstance(shots, int) else 0,
        n,
        count.original if count else 0,
        errors=0,
        metrics=estimates(found.results.get(name, {}), n),
        data_hash=found.task_hashes.get(name, ""),
    )


def _entry(result: TaskResult) -> TaskEntry:
    names = ("version", "n", "total", "data_hash", "task_type", "n_shots", "warnings")
    return TaskEntry(requested=result.task, **{name: getattr(result, name) for name in names})


@dataclass
class _SamplesWriter:
    """Writes the samples of a task, and adds to its result what they show. Those that cannot be read are counted."""

    result: TaskResult
    ids: set[str | int] = field(default_factory=set)
    responses: int = 0
    broken: list[str] = field(default_factory=list)
    flagged: list[tuple[str | int, list[str]]] = field(default_factory=list)
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The smallest and the largest value of each metric."""

    def write(self, samples: Iterable[Converted], folder: RunFolder, model: str) -> None:
        result = self.result
        write_lines(folder, result.task, self._lines(samples, run_columns(model, folder)))
        if self.broken:
            result.warnings.append(f"{len(self.broken)} samples cannot be read, the first: {self.broken[0]}")
            warn(f"{result.task}: {result.warnings[-1]}")
        result.n = max(result.n, len(self.ids))
        result.flags = count_flags(self.flagged)
        for name, estimate in result.metrics.items():
            first, last = self.ranges.get(name, (-1.0, -1.0))
            if 0 <= first <= last <= 1:  # nor has their mean other values
                result.metrics[name] = inside(estimate)

    def _lines(self, samples: Iterable[Converted], run: Mapping[str, str]) -> Iterator[str]:
        for converted in samples:
            if isinstance(converted, str):
                self.broken.append(converted)
                continue
            sample, columns = converted
            name = sample.sample.id
            try:
                line = line_of(columns_of(structs.replace(row_of(dict(run), self.result.task, sample), **columns)))
            except (RunError, RecursionError, ArithmeticError, ValueError) as error:  # such as a number without a float
                self.broken.append(f"sample {name}: {error}")
                continue
            self._count(sample)
            yield line

    def _count(self, sample: RunSample) -> None:
        self.ids.add(sample.sample.id)
        self.responses += sum(map(len, sample.responses))
        self.flagged += [(sample.sample.id, sample.flags)] if sample.flags else []
        for metric, values in sample.values.items():
            numbers = [float(value) for value in values if isinstance(value, (int, float))]
            low, high = self.ranges.get(metric, (math.inf, -math.inf))
            self.ranges[metric] = min(low, *numbers, math.inf), max(high, *numbers, -math.inf)
        if sample.error is not None and not any(value is not None for values in sample.values.values() for value in values):
            self.result.errors += 1
            if len(self.result.failures) < MOST_LISTED:
                self.result.failures.append({"id": sample.sample.id, "error": sample.error})


def estimates(entry: Mapping[str, Any], n: int) -> dict[str, Estimate]:
    """The metrics of a task or group, each with its standard error where lm-eval gives one."""
    metrics = {}
    for key, given in entry.items():
        metric, comma, filter_name = key.partition(",")
        owner = f"{metric.removesuffix(_STDERR)}{comma}{filter_name}"
        value = _number(given)
        if not comma or value is None or (metric.endswith(_STDERR) and owner in entry):
            continue
        stderr = _number(entry.get(f"{metric}{_STDERR},{filter_name}"))
        metrics[key.removesuffix(_NO_FILTER)] = tool_estimate(value, stderr, n)
    return metrics


def tool_estimate(value: float, stderr: float | None, n: int) -> Estimate:
    """A metric as another tool reports it. Its interval is mill's: exact for proportions, else Student's around the value;
    none where the standard error or the number of samples is not known."""
    known = stderr if stderr is not None and math.isfinite(stderr) else None
    estimate = around(value, known, n)
    if known is None or n < 1:
        return Estimate(value, known, None, None, n)
    if is_proportion(estimate):
        low, high = exact_interval(value * n, n)
        return Estimate(value, known, low, high, n)
    return estimate


def _number(value: Any) -> float | None:
    """A number; None for anything else, such as the "N/A" of a standard error that is not computed."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _benchmarks(found: LmEvalResults, results: Mapping[str, TaskResult]) -> Iterator[BenchmarkResult]:
    """The groups that have metrics of their own."""
    for name, entry in found.results.items():
        if name in results:
            continue
        tasks = [task for task in _leaves(name, found.group_subtasks) if task in results]
        n = sum(results[task].n for task in tasks)
        metrics = estimates(entry, n)
        if metrics and tasks:
            yield BenchmarkResult(
                benchmark=name,
                tasks=tasks,
                n=n,
                total=sum(results[task].total for task in tasks),
                errors=sum(results[task].errors for task in tasks),
                metrics=metrics,
            )


def _leaves(group: str, subtasks: Mapping[str, list[str]]) -> list[str]:
    """The tasks of a group and of the groups in it, each once."""
    names = [group]
    for name in names:
        names += [below for below in dict.fromkeys(subtasks.get(name, [])) if below not in names]
    return [name for name in names if not subtasks.get(name)]


def _about(log: ToolLog, found: LmEvalResults) -> dict[str, Any]:
    config = found.config
    arguments = _arguments(config.get("model_args"))
    backend = found.model_source or str(config.get("model") or "")
    model = found.model_name or str(arguments.get("pretrained") or arguments.get("model") or backend or "unknown")
    versions = {"lm-eval": found.lm_eval_version, "transformers": found.transformers_version, "git": found.git_hash}
    return {
        "model": {"name": model, "backend": backend, "arguments": redact(arguments), "identity": {}},
        "settings": {name: value for name, value in _settings(found).items() if value not in (None, {}, "")},
        "versions": {name: version for name, version in versions.items() if version},
        "source": {"tool": LM_EVAL, "path": str(log.path)},
    }


def _arguments(given: Any) -> dict[str, Any]:
    """The model's arguments, which are an object or a text `name=value,name=value`."""
    if isinstance(given, Mapping):
        return {str(name): value for name, value in given.items()}
    pairs = [part.partition("=") for part in given.split(",")] if isinstance(given, str) else []
    return {name.strip(): value for name, equals, value in pairs if equals}


def _settings(found: LmEvalResults) -> dict[str, Any]:
    config, shots = found.config, set(found.n_shot.values())
    options = config.get("gen_kwargs")
    chat = bool(found.chat_template)
    return {
        "n_shots": next(iter(shots)) if len(shots) == 1 else None,
        "seed": config.get("fewshot_seed"),
        "gen_kwargs": _arguments(options),
        "limit": config.get("limit"),
        "system_prompt": found.system_instruction,
        "apply_chat_template": chat,
        "fewshot_as_multiturn": found.fewshot_as_multiturn if chat else None,
        **{name: config.get(name) for name in ("batch_size", "device", "random_seed", "numpy_seed", "torch_seed")},
    }


def _session(found: LmEvalResults) -> SessionEntry:
    try:
        seconds = float(found.total_evaluation_time_seconds or 0.0)
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(found.date)) if found.date else "-"
    except (ValueError, OverflowError, OSError):
        seconds, started = 0.0, "-"
    return SessionEntry(
        id="1", order=1, started=started, ended="finished", seconds=seconds if math.isfinite(seconds) else 0.0
    )


UNFILTERED = "none"


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
    in responses are texts.
    """

    doc_id: int | str
    doc: Any
    target: Any
    arguments: dict[str, dict[str, Any]] | list[list[Any]]
    resps: list[Any]
    filtered_resps: list[Any]
    filter: str = UNFILTERED
    metrics: list[str] | None = None


_FIELDS = {*LmEvalSample.__struct_fields__, "doc_hash", "prompt_hash", "target_hash"}

Line = tuple[int, int]  # number and offset
Read = tuple[LmEvalSample, Mapping[str, Any]]  # a line, and all of its fields


def read_lm_eval_samples(file: Path, task: str, config: Mapping[str, Any]) -> Iterator[Converted]:
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
                by_filter: dict[str, Read] = {}
                for number, offset in lines:
                    sample, raw = _read(handle, file, (number, offset))
                    if sample.filter in by_filter:
                        yield f"{file}, line {number}, is a second line of its document"
                    else:
                        by_filter[sample.filter] = sample, raw
                yield _sample(by_filter, task, config)
            except (RunError, RecursionError) as error:
                yield str(error)


def _documents(file: Path) -> tuple[dict[str, list[Line]], list[str]]:
    """The lines of each document, and what is no line of a document."""
    documents: dict[str, list[Line]] = {}
    broken = []
    for number, (offset, line) in enumerate(read_lines(file), 1):
        if not line.strip():
            continue
        where = f"{file}, line {number},"
        try:
            name = str(convert(parse_json(line, where, RunError), LmEvalSample, where, RunError).doc_id)
        except RunError as error:
            broken.append(str(error))
            continue
        documents.setdefault(name, []).append((number, offset))
    return documents, broken


def _read(handle: IO[bytes], file: Path, line: Line) -> Read:
    number, offset = line
    where = f"{file}, line {number},"
    try:
        handle.seek(offset)
        raw = parse_json(handle.readline(MOST_LINE), where, RunError)
    except OSError as error:
        raise RunError(f"cannot read {file}: {error.strerror or error}") from error
    found = convert(raw, LmEvalSample, where, RunError)
    if not _requests_of(found) or len(_requests_of(found)) != len(found.resps):
        raise RunError(f"{where} is not valid: resps: a list of responses for each of the arguments is needed")
    return found, raw


def _sample(lines: Mapping[str, Read], task: str, config: Mapping[str, Any]) -> Converted:
    """A document from its lines, by filter. Requests and responses are the same in all of them."""
    first, _ = next(iter(lines.values()))
    arguments = _requests_of(first)
    draws = [drawn if isinstance(drawn, list) and drawn else [drawn] for drawn in first.resps]
    responses = [[_response(request, one) for one in drawn] for request, drawn in zip(arguments, draws, strict=True)]
    by_repeat = [list(repeat) for repeat in zip(*responses, strict=False)]
    # Messages for a server are a text in a list of one.
    prompts = [request[0] for request in arguments]
    contexts = [str(prompt[0] if isinstance(prompt, list) and len(prompt) == 1 else prompt) for prompt in prompts]
    continuations = [one[1] for one in arguments if len(one) > 1 and isinstance(one[1], str)]
    choices = _choices(contexts, continuations, config)
    name = str(first.doc_id)
    chosen = _chosen(by_repeat[0], choices)
    sample = RunSample(
        Sample(name, first.doc if isinstance(first.doc, Mapping) else {"doc": first.doc}),
        _target(first, choices, config),
        contexts[0],
        continuations,
        [[f"{task}/{name}/{index}/{repeat}" for index in range(len(arguments))] for repeat in range(len(by_repeat))],
        by_repeat,
        sent=contexts[0],
        prompts=contexts if len(set(contexts[: len(choices) or None])) > 1 else [],
        values=_values(lines),
        extracted=chosen.get("chosen") if choices else _extracted(first, arguments),
        choices=choices,
    )
    return sample, chosen


def _requests_of(sample: LmEvalSample) -> list[list[Any]]:
    """The arguments of each request: the prompt, and what follows it."""
    if isinstance(sample.arguments, list):
        return [one for one in sample.arguments if one]
    return [list(one.values()) for one in sample.arguments.values() if one]


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
    mutual = any(contexts[:half]) and not any(contexts[half:]) and continuations[:half] == continuations[half:]
    count = half if mutual else len(contexts)
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
    known = [score for score in scores if score is not None and not math.isnan(score)]
    finite = [score if score is not None and math.isfinite(score) else None for score in scores]
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
        behind = "" if filter_name == UNFILTERED else f",{filter_name}"
        values |= {f"{name}{behind}": [_value(raw[name])] for name in names if name in raw}
    return values


def _value(value: Any) -> Value:
    number = float(value) if isinstance(value, bool) else _number(value)
    return number if number is not None or value is None else Opaque(str(value) if isinstance(value, int) else value)
