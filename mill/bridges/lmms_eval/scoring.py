"""Filters, sample metrics and aggregation of lmms-eval, called as its evaluator does."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from mill.bridges.lm_eval.scoring import split_metric, standard_error
from mill.compat import replaced

_OTHER_TASKS = ("lmms_eval.tasks.amber_g.utils", "lmms_eval.tasks.coco_cap_chair.utils")
# What an aggregation gets that writes a file to submit: it writes to the folder `submissions`.
_ARGUMENTS = SimpleNamespace(output_path=None, model="mill", model_args="", tasks="", process_with_media=False)


def scored(task: Any, doc: Mapping[str, Any], responses: Sequence[Any], repeats: int) -> dict[tuple[str, str], Any]:
    """The values of a document by metric and filter, from the responses to its instances, `repeats` to each."""
    from lmms_eval.api.instance import Instance
    from lmms_eval.api.task import ConfigurableTask

    metadata = {"task": task.config.task, "doc_id": 0, "repeats": repeats}
    each = [list(responses[at : at + repeats]) for at in range(0, len(responses), repeats)]
    instances = [
        Instance(request_type="generate_until", arguments=("",), idx=number, metadata=metadata, resps=given)
        for number, given in enumerate(each)
    ]
    known = task.aggregation()
    process: Any = ConfigurableTask.process_results  # it scores up to five times where a task's code fails, and hides why
    found: dict[tuple[str, str], Any] = {}
    for ensemble in task._filters:
        ensemble.apply(instances, [doc] * len(instances))
    for name in instances[0].filtered_resps:
        filtered = [_without_reasoning(task, instance.filtered_resps[name]) for instance in instances]
        with replaced(ConfigurableTask, process_results=getattr(process, "__wrapped__", process)):
            values = task.process_results(doc, filtered)
        found |= {(metric, name): value for metric, value in values.items() if metric in known}
    return found


def prepare_filters(task: Any) -> None:
    """Strip the reasoning of answers first, where a task says so."""
    from lmms_eval.filters.transformation import StripThinkingFilter

    if getattr(task.config, "auto_strip_thinking", False) and _reasoning_tags(task) is None:
        for ensemble in task._filters:
            if not any(isinstance(one, StripThinkingFilter) for one in ensemble.filters):
                ensemble.filters.insert(0, StripThinkingFilter())


def _reasoning_tags(task: Any) -> Any:
    from lmms_eval.api.reasoning import parse_reasoning_tags_config

    return parse_reasoning_tags_config(task_value=getattr(task.config, "reasoning_tags", None))


def _without_reasoning(task: Any, answer: Any) -> Any:
    from lmms_eval.api.reasoning import strip_reasoning_tags

    tags = _reasoning_tags(task)
    if tags is None:
        return answer
    if isinstance(answer, list):
        return [strip_reasoning_tags(one, tags) if isinstance(one, str) else one for one in answer]
    return strip_reasoning_tags(answer, tags) if isinstance(answer, str) else answer


class NoNumber(Exception):
    """An aggregation gave no number, as one that only writes a file to submit."""


def aggregated(task: Any, name: str, values: Sequence[Any]) -> tuple[float, float | None]:
    """The value and standard error of a metric over all documents that have one."""
    from lmms_eval.api import metrics

    metric, _ = split_metric(name)
    how = task.aggregation()[metric]
    given = {"args": _ARGUMENTS} if "args" in inspect.signature(how).parameters else {}
    value = how(list(values), **given)
    number = _number(value)
    if number is None:
        raise NoNumber(_shown(value))
    with _without_other_tasks():
        return number, standard_error(metrics, metric, how, values)


@contextlib.contextmanager
def _without_other_tasks() -> Iterator[None]:
    """lmms-eval imports two tasks for the standard error of any metric, to compare it with theirs: that takes seconds, and
    one of them downloads data. A metric of theirs is known by its name, too."""
    added = [name for name in _OTHER_TASKS if name not in sys.modules]
    sys.modules.update(dict.fromkeys(added))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in added:
            sys.modules.pop(name, None)


def _number(value: Any) -> float | None:
    if value is None or isinstance(value, (str, Mapping, list, tuple)):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _shown(value: Any) -> str:
    text = "nothing" if value is None else f"{value!r}, which is not a number"
    return text if len(text) <= 400 else f"{text[:400]}..."
