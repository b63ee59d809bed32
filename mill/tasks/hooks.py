"""Checks of what a task's hooks return: a faulty task is refused here, before anything is computed.

Tasks may be third-party code: a hook may raise, or return anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from typing import Any, NoReturn, TypeVar

from mill.api.errors import DataError, MillError, SpecError, UnknownName
from mill.api.judge import Judge
from mill.api.message import Message
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
    for attribute, (kinds, wanted) in _ATTRIBUTES.items():
        _need(task, attribute, call(task, attribute, partial(getattr, task, attribute)), kinds, wanted)
    if task.kind not in KINDS:
        _refuse(task, f"kind is {task.kind!r}, not one of {', '.join(KINDS)}")
    for part in (*task.modalities, *task.alternatives):
        _need(task, "a part of modalities or alternatives", part, (str,), "a text")


_ATTRIBUTES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "task_type": ((TaskType,), "a TaskType"),
    "kind": ((str,), "a text"),
    "version": ((int, str), "a whole number or a text"),
    "n_shots": ((int,), "a whole number"),
    "takes_shots": ((bool,), "true or false"),
    "modalities": ((frozenset, set), "a set of texts"),
    "alternatives": ((tuple, list), "a tuple of names"),
    "judge": ((Judge, type(None)), "a Judge or None"),
}


def read_samples(task: Task) -> list[Sample]:
    """All samples of a task, checked: at least one, ids unique, rows mappings."""
    samples = call(task, "samples()", lambda: _as_list(task, "samples()", task.samples()))
    if not samples:
        raise DataError(f"{task.name} has no samples")
    seen: set[str] = set()
    for sample in samples:
        _need(task, "an item of samples()", sample, (Sample,), "a Sample")
        if not isinstance(sample.id, str) or not isinstance(sample.doc, Mapping):
            _refuse(
                task,
                f"a sample has the id {_shown(sample.id)} and the row {_shown(sample.doc)}: a text and a mapping are needed",
            )
        if sample.id in seen:
            raise DataError(f"{task.name} has two samples with the id {sample.id!r}")
        seen.add(sample.id)
    return samples


def check_metrics(task: Task) -> None:
    names = call(task, "metrics", lambda: task.metrics)
    if not isinstance(names, Mapping) or not (names or task.open_metrics):
        raise DataError(f"{task.name} has no metrics: write metrics = {{'exact_match': 'mean'}}")
    known = f"registered metrics are {', '.join(registry.names())}; --task_paths FILE loads a file that registers others"
    for how in names.values():
        _need(task, "a value of metrics", how, (str,), "the name of a registered metric")
        registry.get(how, hint=f"the task {task.name} names it; {known}")


def check_sample(task: Task, sample: Sample) -> None:
    """Check target, category and extracts of a sample before it runs."""
    what = f"target() of sample {sample.id}"
    target = call(task, what, lambda: task.target(sample))
    call(task, f"{what}, written as JSON,", lambda: json.dumps(target, default=str))
    category = call(task, f"category() of sample {sample.id}", lambda: task.category(sample))
    _need(task, f"category() of sample {sample.id}", category, (str,), "a text")
    call(task, f"extracts() of sample {sample.id}", lambda: bool(task.extracts(sample)))


def read_warnings(task: Task) -> list[str]:
    return call(task, "warnings()", lambda: [str(warning) for warning in _as_list(task, "warnings()", task.warnings())])


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


def check_request(task: Task, sample: Sample, request: Any) -> None:
    """Refuse a request that backends or the record cannot take."""
    where = f"a request of sample {sample.id}"
    _need(task, where, request, (Request,), "a Request")
    if request.kind not in task.kinds:
        kinds = " and ".join(sorted(task.kinds))
        raise DataError(f"{task.name} is of kind {kinds} but makes a {request.kind} request for sample {sample.id}")
    if not isinstance(request.context, str) and not _is_dialog(request.context):
        _refuse(task, f"the context of {where} must be a text or a tuple of Messages")
    if request.context == ():
        _refuse(task, f"the context of {where} is an empty dialog")
    if request.repeats < 1:
        _refuse(task, f"repeats of {where} is {request.repeats}, not a count of at least 1")
    _need(task, f"options of {where}", request.options, (Mapping,), "a mapping")
    try:
        json.dumps(dict(request.options))
    except (TypeError, ValueError, RecursionError) as error:
        _refuse(task, f"the options of {where} cannot be written as JSON: {describe(error)}")
    missing = [name for name in _NEEDED if name not in request.options] if request.kind in (GENERATE, MULTI_ROUND) else []
    if missing:
        _refuse(task, f"the options of {where} lack {', '.join(missing)}: make them with settings.options()")


def _is_dialog(context: Any) -> bool:
    return isinstance(context, tuple) and all(
        isinstance(message, Message) and isinstance(message.content, (str, tuple)) for message in context
    )


def _as_list(task: Task, what: str, value: Any) -> list[Any]:
    if isinstance(value, (str, bytes, Mapping)) or not hasattr(value, "__iter__"):
        _refuse(task, f"{what} gives {_shown(value)}, not a list")
    return list(value)


def _need(task: Task, what: str, value: object, kinds: tuple[type, ...], wanted: str) -> None:
    """Refuse a value of another type; true and false are not numbers."""
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        _refuse(task, f"{what} is {_shown(value)}, not {wanted}")


def _refuse(task: Task, why: str) -> NoReturn:
    raise DataError(f"the task {task.name} cannot be used: {why}")


def _shown(value: object) -> str:
    """A value in a message: its type, and itself where that is short and plain."""
    if value is None or isinstance(value, (bool, int, float, str, Enum)):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:60]}..."
    return f"a {type(value).__name__}"
