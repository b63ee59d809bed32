"""Checks of what a task's hooks return: a faulty task is refused here, before anything is computed.

Tasks may be third-party code: a hook may raise, or return anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, NoReturn, TypeVar

from mill.api.errors import DataError, MillError, SpecError, UnknownName
from mill.api.judge import Judge
from mill.api.message import Labels, Media, Message
from mill.api.registry import metrics as registry
from mill.api.request import GENERATE, KINDS, MULTI_ROUND, Request
from mill.api.task import RenderSettings, Sample, Task, TaskType
from mill.support.terminal import describe

T = TypeVar("T")
_NEEDED = ("until", "max_gen_toks", "temperature")  # of a request for text


def call(task: Task, what: str, hook: Callable[[], T]) -> T:
    """What a hook returns. What it raises becomes one line with the task's name."""
    try:
        return hook()
    except (SpecError, UnknownName) as error:  # such as a decoding option that the task itself gives
        raise DataError(f"the task {task.name} cannot be rendered: {error}") from error
    except (MillError, KeyboardInterrupt):
        raise
    except BaseException as error:  # third-party code may raise anything
        raise DataError(f"the task {task.name} cannot be rendered: {what} raised {describe(error)}") from error


def attempt(hook: Callable[[], T]) -> T | None:
    """What a hook returns; None where it raises, for values that are only shown."""
    try:
        return hook()
    except KeyboardInterrupt:
        raise
    except BaseException:
        return None


def check_attributes(task: Task) -> None:
    """Check a task's attributes, by which models that can serve it are found."""
    name = getattr(task, "name", None)
    if not isinstance(name, str) or not name.strip():
        raise DataError(f"a task of the class {type(task).__name__} has no name: call super().__init__(name)")
    for attribute, kinds, wanted in _ATTRIBUTES:
        value = call(task, attribute, lambda attribute=attribute: getattr(task, attribute))  # type: ignore[misc]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            _refuse(task, f"{attribute} is {_shown(value)}, not {wanted}")
    if task.kind not in KINDS:
        _refuse(task, f"kind is {task.kind!r}, not one of {', '.join(KINDS)}")
    for attribute in ("modalities", "alternatives"):
        if not all(isinstance(part, str) for part in getattr(task, attribute)):
            _refuse(task, f"{attribute} is {_shown(getattr(task, attribute))}, not a collection of texts")


_ATTRIBUTES: tuple[tuple[str, tuple[type, ...], str], ...] = (
    ("task_type", (TaskType,), "a TaskType"),
    ("kind", (str,), "a text"),
    ("version", (int, str), "a whole number or a text"),
    ("n_shots", (int,), "a whole number"),
    ("takes_shots", (bool,), "true or false"),
    ("takes_choice_options", (bool,), "true or false"),
    ("by_letter", (str,), "a text"),
    ("modalities", (frozenset, set), "a set of texts"),
    ("alternatives", (tuple, list), "a tuple of names"),
    ("judge", (Judge, type(None)), "a Judge or None"),
)


def read_samples(task: Task) -> list[Sample]:
    """All samples of a task, checked: at least one, ids unique, rows mappings."""
    samples = call(task, "samples()", lambda: _as_list(task, "samples()", task.samples()))
    if not samples:
        raise DataError(f"{task.name} has no samples")
    seen: set[str] = set()
    for sample in samples:
        if not isinstance(sample, Sample):
            _refuse(task, f"samples() gives {_shown(sample)}, not a Sample")
        if not isinstance(sample.id, str):
            _refuse(task, f"samples() gives a sample with the id {_shown(sample.id)}, which is not a text")
        if not isinstance(sample.doc, Mapping):
            _refuse(task, f"sample {sample.id!r} has the row {_shown(sample.doc)}, which is not a mapping")
        if sample.id in seen:
            raise DataError(f"{task.name} has two samples with the id {sample.id!r}")
        seen.add(sample.id)
    return samples


def check_metrics(task: Task) -> None:
    names = call(task, "metrics", lambda: task.metrics)
    if not isinstance(names, Mapping) or not (names or task.open_metrics):
        raise DataError(f"{task.name} has no metrics: write metrics = {{'exact_match': 'mean'}}")
    for name, how in names.items():
        if not isinstance(name, str) or not isinstance(how, str):
            _refuse(task, f"metrics has {name!r}: {_shown(how)}, not a name and the name of a metric")
        known = f"registered metrics are {', '.join(registry.names())}; --task_paths FILE loads a file that registers others"
        registry.get(how, hint=f"the task {task.name} names it; {known}")


def check_sample(task: Task, sample: Sample) -> None:
    """Check target, category and extracts of a sample before it runs."""
    target = call(task, f"target() of sample {sample.id}", lambda: task.target(sample))
    _check_json(task, f"target() of sample {sample.id}", target)
    category = call(task, f"category() of sample {sample.id}", lambda: task.category(sample))
    if not isinstance(category, str):
        _refuse(task, f"category() of sample {sample.id} is {_shown(category)}, not a text")
    call(task, f"extracts() of sample {sample.id}", lambda: bool(task.extracts(sample)))


def read_warnings(task: Task) -> list[str]:
    warnings = call(task, "warnings()", lambda: _as_list(task, "warnings()", task.warnings()))
    for warning in warnings:
        if not isinstance(warning, str):
            _refuse(task, f"warnings() gives {_shown(warning)}, not a text")
    return warnings


def read_requests(task: Task, sample: Sample, settings: RenderSettings) -> list[Request]:
    """The requests of a sample, checked."""
    what = f"requests() of sample {sample.id}"
    requests = call(task, what, lambda: _as_list(task, what, task.requests(sample, settings)))
    if not requests:
        raise DataError(f"{task.name} makes no request for sample {sample.id}")
    for request in requests:
        check_request(task, sample, request)
    if len({request.repeats for request in requests}) > 1:
        _refuse(task, f"the requests of sample {sample.id} have different repeats")
    return requests


def check_request(task: Task, sample: Sample, request: object) -> None:
    """Refuse a request that backends or the record cannot take."""
    where = f"of sample {sample.id}"
    if not isinstance(request, Request):
        _refuse(task, f"a request {where} is {_shown(request)}, not a Request")
    if request.kind not in task.kinds:
        kinds = " and ".join(sorted(task.kinds))
        raise DataError(f"{task.name} is of kind {kinds} but makes a {request.kind} request for sample {sample.id}")
    wrong = _wrong_context(request.context)
    if wrong:
        _refuse(task, f"the context of a request {where} {wrong}")
    if not isinstance(request.continuation, str):
        _refuse(task, f"the continuation of a request {where} is {_shown(request.continuation)}, not a text")
    if not isinstance(request.labels, Labels):
        _refuse(task, f"the labels of a request {where} are {_shown(request.labels)}, not Labels")
    for name, least in (("repeats", 1), ("draw", 0)):
        value = getattr(request, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            _refuse(task, f"{name} of a request {where} is {_shown(value)}, not a count of at least {least}")
    _check_decoding(task, where, request)


def _check_decoding(task: Task, where: str, request: Request) -> None:
    options = request.options
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        _refuse(task, f"the options of a request {where} are {_shown(options)}, not a mapping with names")
    try:
        if options:
            json.dumps(dict(options))
    except (TypeError, ValueError, RecursionError) as error:
        _refuse(task, f"the options of a request {where} cannot be written as JSON: {describe(error)}")
    missing = [name for name in _NEEDED if name not in options] if request.kind in (GENERATE, MULTI_ROUND) else []
    if missing:
        _refuse(task, f"the options of a request {where} lack {', '.join(missing)}: make them with settings.options()")


def _wrong_context(context: object) -> str:
    """What is wrong with a context; empty where it is a text or a tuple of messages."""
    if isinstance(context, str):
        return ""
    if not isinstance(context, tuple):
        return f"is {_shown(context)}, not a text or a tuple of messages"
    for message in context:
        if not isinstance(message, Message):
            return f"holds {_shown(message)}, not a Message"
        parts = (message.content,) if isinstance(message.content, str) else message.content
        if not isinstance(message.role, str) or not isinstance(parts, tuple):
            return f"holds {_shown(message)}, whose role is no text or whose content neither a text nor a tuple"
        for part in parts:
            if not isinstance(part, (str, Media)):
                return f"holds a message with {_shown(part)}, neither text nor media"
    return "" if context else "is an empty dialog"


def _check_json(task: Task, what: str, value: Any) -> None:
    """Check that a value can be written as JSON, with str() for other types."""
    if type(value) in (str, int, type(None)):
        return
    call(task, f"{what}, written as JSON,", lambda: json.dumps(value, default=str))


def _as_list(task: Task, what: str, value: Any) -> list[Any]:
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
        _refuse(task, f"{what} gives {_shown(value)}, not a list")
    return list(value)


def _refuse(task: Task, why: str) -> NoReturn:
    raise DataError(f"the task {task.name} cannot be used: {why}")


def _shown(value: object) -> str:
    """A value in a message: its type, and itself where that is short and plain."""
    kind = type(value).__name__
    if value is None or isinstance(value, (bool, int, float, str, Enum)):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:60]}..."
    return f"a {kind}"
