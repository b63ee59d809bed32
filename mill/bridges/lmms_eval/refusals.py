"""Which tasks of lmms-eval mill cannot run, and why: known from a task's configuration and from what its functions can call,
before its data are loaded.

The functions that a task names are followed through the names in their code, as far as they lead inside of lmms-eval's tasks
and verifiers. What is found may be called; a call that nothing here foresees is caught when it happens (see `judge.py`).
"""

from __future__ import annotations

import functools
import inspect
import os
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mill.api.errors import DataError
from mill.bridges.lmms_eval.library import PREFIX

_JUDGES = {"OpenAI", "AzureOpenAI", "AsyncOpenAI", "AsyncAzureOpenAI", "get_server", "ProviderFactory"}
# Functions behind a switch that is off unless the environment sets it, and one that passes `static_only`.
_SWITCHED: dict[str, Callable[[types.FunctionType], bool]] = {
    "acc_reward": lambda function: function.__globals__.get("USE_LLM_JUDGE") == "True",
    "ChatCompletionSampler": lambda function: os.environ.get("PROCESSOR") == "gpt-4o-mini",
    "mmbench_aggregate_dev_results_static": lambda function: False,
}


def calls_judge(functions: Iterable[Any]) -> bool:
    """Whether code may lead to a judge, through the functions and classes of lmms-eval that it names."""
    waiting, seen = [*functions], set[int]()
    while waiting:
        for function in _functions(waiting.pop()):
            if id(function.__code__) in seen or not _is_on(function.__name__, function):
                continue
            seen.add(id(function.__code__))
            names = {name for code in _codes(function.__code__) for name in code.co_names}
            used = [function.__globals__[name] for name in names & function.__globals__.keys() if _is_on(name, function)]
            if names & _JUDGES or any(_is_judge(one, names) for one in used):
                return True
            for one in used:
                if not isinstance(one, types.ModuleType):
                    waiting.append(one)
                elif one.__name__.startswith("lmms_eval.tasks"):
                    waiting += [getattr(one, name) for name in names if hasattr(one, name)]
    return False


def _is_on(name: str, function: types.FunctionType) -> bool:
    return name not in _SWITCHED or _SWITCHED[name](function)


def _functions(found: Any) -> Iterator[types.FunctionType]:
    """A function of lmms-eval, or the methods of such a class or object. Task files are imported under short names, so the
    path of the code decides. An object is not touched: it may load data when an attribute is read."""
    if isinstance(found, functools.partial):
        found = found.func
    if isinstance(found, (types.FunctionType, types.MethodType)) or hasattr(type(found), "cache_info"):
        functions = [inspect.unwrap(getattr(found, "__func__", found))]
    else:
        owner = found if isinstance(found, type) else type(found)
        functions = [getattr(value, "__func__", value) for ancestor in owner.__mro__ for value in vars(ancestor).values()]
    for one in functions:
        if isinstance(one, types.FunctionType) and "lmms_eval" in one.__code__.co_filename:
            yield one


def _is_judge(used: Any, names: set[str]) -> bool:
    if isinstance(used, types.ModuleType):
        return (used.__name__ == "requests" and "post" in names) or (used.__name__ == "openai" and "chat" in names)
    owner = used if isinstance(used, type) else type(used)
    return owner.__module__.startswith(("lmms_eval.llm_judge", "openai")) or getattr(owner, "is_mill_judge", False) is True


def needs_judge(config: Mapping[str, Any]) -> bool:
    """Whether a function that scores one answer may call a judge: the task's own scoring, its metrics and its filters."""
    metrics = [metric.get("metric") for metric in config.get("metric_list") or () if isinstance(metric, Mapping)]
    filters = [
        step.get("function")
        for pipeline in config.get("filter_list") or ()
        if isinstance(pipeline, Mapping)
        for step in pipeline.get("filter") or ()
        if isinstance(step, Mapping)
    ]
    return calls_judge(function for function in (config.get("process_results"), *metrics, *filters) if callable(function))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


_OUTPUT_TYPES = {
    "generate_visual_cot": "it generates images between its steps (visual chain of thought)",
    "generate_until_agentic": "it is an agent with tools",
    "generate_until_multi_round": "its later prompts depend on earlier answers",
    "loglikelihood": "it scores a continuation without choices",
}
_SUPPORTED = ("generate_until", "multiple_choice")
# Folders of tasks whose answers are files that a model draws or films, although their type is that of texts.
_FILE_ANSWERS = {
    "WISE",
    "babyvision_gen",
    "gedit_bench",
    "imgedit",
    "kris_bench",
    "structeditbench",
    "ueval",
    "vbench",
    "vbvr",
}


def _reason(config: Mapping[str, Any]) -> str:
    """Why a task cannot run; empty where it can."""
    output_type = config.get("output_type") or "generate_until"
    if output_type not in _SUPPORTED:
        return _OUTPUT_TYPES.get(output_type, f"it is of the type {output_type}")
    if (config.get("generation_kwargs") or {}).get("visual_cot"):
        return _OUTPUT_TYPES["generate_visual_cot"]
    metrics = config.get("metric_list") or ()
    if any(metric.get("metric") == "acc_mutual_info" for metric in metrics):
        return "it scores choices by mutual information"
    if _folder(config.get("process_results")) in _FILE_ANSWERS:
        return "its answers are images or videos that a model generates"
    if calls_judge(metric["aggregation"] for metric in metrics if callable(metric.get("aggregation"))):
        return "a judge or another web service is called while its scores are aggregated, after the last sample"
    return ""


def _folder(function: Any) -> str:
    code = getattr(function, "__code__", None)
    return Path(code.co_filename).parent.name if code is not None else ""


def refuse(name: str, config: Mapping[str, Any]) -> None:
    if why := _reason(config):
        raise DataError(f"{PREFIX}{name} cannot run in mill: {why}")
