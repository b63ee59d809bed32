"""Which tasks of lmms-eval mill cannot run, and why: known from a task's configuration and from what its functions can call,
before its data are loaded.

The functions that a task names are followed through the names in their code, as far as they lead inside of lmms-eval's tasks
and verifiers. What is found may be called; a call that nothing here foresees is caught when it happens (see `judge.py`).
"""

from __future__ import annotations

import functools
import os
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mill.api.errors import DataError
from mill.bridges.lmms_eval.library import PREFIX

_CLIENTS = {"OpenAI", "AzureOpenAI", "AsyncOpenAI", "AsyncAzureOpenAI"}
_SERVERS = {"get_server", "ProviderFactory"}
# Functions behind a switch that is off unless the environment sets it, and one that passes `static_only`.
_SWITCHED: dict[str, Callable[[types.FunctionType], bool]] = {
    "acc_reward": lambda function: function.__globals__.get("USE_LLM_JUDGE") == "True",
    "ChatCompletionSampler": lambda function: os.environ.get("PROCESSOR") == "gpt-4o-mini",
    "mmbench_aggregate_dev_results_static": lambda function: False,
}


def calls_judge(functions: Iterable[Any]) -> bool:
    return any(_reaches(function, frozenset(), set()) for function in functions)


def scoring_functions(config: Mapping[str, Any]) -> list[Any]:
    """The functions of a task that score one answer: its own scoring, its metrics and its filters."""
    metrics = [metric.get("metric") for metric in config.get("metric_list") or () if isinstance(metric, Mapping)]
    filters = [
        step.get("function")
        for pipeline in config.get("filter_list") or ()
        if isinstance(pipeline, Mapping)
        for step in pipeline.get("filter") or ()
        if isinstance(step, Mapping)
    ]
    return [found for found in (config.get("process_results"), *metrics, *filters) if callable(found)]


def aggregating_functions(config: Mapping[str, Any]) -> list[Any]:
    metrics = config.get("metric_list") or ()
    return [metric["aggregation"] for metric in metrics if callable(metric.get("aggregation"))]


def _reaches(found: Any, names: frozenset[str], seen: set[int]) -> bool:
    """Whether code leads to a judge: a function, or those methods of a class or object that `names` has."""
    if isinstance(found, functools.partial):
        found = found.func
    function = getattr(found, "__func__", found)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    if isinstance(function, types.FunctionType):
        return id(function.__code__) not in seen and _function_reaches(function, seen)
    owner = found if isinstance(found, type) else type(found)
    called = names | {"__init__", "__call__", "apply"}
    return any(_reaches(method, names, seen) for name, method in _methods(owner) if name in called)


def _function_reaches(function: types.FunctionType, seen: set[int]) -> bool:
    seen.add(id(function.__code__))
    if function.__name__ in _SWITCHED and not _SWITCHED[function.__name__](function):
        return False
    for code in _codes(function.__code__):
        names = frozenset(code.co_names)
        if names & _SERVERS or names & _CLIENTS:
            return True
        for name in names:
            used = function.__globals__.get(name)
            if name in _SWITCHED and not _SWITCHED[name](function):
                continue
            if _is_judge(used, names) or (_is_followed(used) and _reaches(used, names, seen)):
                return True
            if isinstance(used, types.ModuleType) and used.__name__.startswith("lmms_eval.tasks"):
                inside = [getattr(used, inner) for inner in names if hasattr(used, inner)]
                if any(_is_followed(one) and _reaches(one, names, seen) for one in inside):
                    return True
        if _own_methods_reach(function, names, seen):
            return True
    return False


def _own_methods_reach(function: types.FunctionType, names: frozenset[str], seen: set[int]) -> bool:
    """A method calls others of its class through `self`, which is not among the global names."""
    owner_name = function.__qualname__.rpartition(".")[0]
    owner = function.__globals__.get(owner_name)
    if not isinstance(owner, type):
        return False
    return any(_reaches(method, names, seen) for name, method in _methods(owner) if name in names)


def _is_judge(used: Any, names: frozenset[str]) -> bool:
    if isinstance(used, types.ModuleType):
        return (used.__name__ == "requests" and "post" in names) or (used.__name__ == "openai" and "chat" in names)
    package = type(used).__module__ or ""
    return package.startswith(("lmms_eval.llm_judge", "openai")) or getattr(used, "is_mill_judge", False) is True


def _is_followed(used: Any) -> bool:
    """Code of lmms-eval's tasks. Their files are imported under short names, so the path of the code decides."""
    if isinstance(used, functools.partial):
        used = used.func
    if isinstance(used, types.FunctionType):
        return "lmms_eval" in used.__code__.co_filename
    owner = used if isinstance(used, type) else type(used)
    return any("lmms_eval" in method.__code__.co_filename for _, method in _methods(owner))


def _methods(owner: type) -> Iterator[tuple[str, types.FunctionType]]:
    for ancestor in owner.__mro__:
        for name, value in vars(ancestor).items():
            method = getattr(value, "__func__", value)
            if isinstance(method, types.FunctionType):
                yield name, method


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


def reason(config: Mapping[str, Any]) -> str | None:
    """Why a task cannot run; None where it can."""
    if (why := _reason_of_type(config)) is not None:
        return why
    if _folder(config.get("process_results")) in _FILE_ANSWERS:
        return "its answers are images or videos that a model generates"
    if calls_judge(aggregating_functions(config)):
        return "a judge or another web service is called while its scores are aggregated, after the last sample"
    return None


def _reason_of_type(config: Mapping[str, Any]) -> str | None:
    output_type = config.get("output_type") or "generate_until"
    if output_type not in _SUPPORTED:
        return _OUTPUT_TYPES.get(output_type, f"it is of the type {output_type}")
    if (config.get("generation_kwargs") or {}).get("visual_cot"):
        return _OUTPUT_TYPES["generate_visual_cot"]
    if any(metric.get("metric") == "acc_mutual_info" for metric in config.get("metric_list") or ()):
        return "it scores choices by mutual information"
    return None


def _folder(function: Any) -> str:
    code = getattr(function, "__code__", None)
    return Path(code.co_filename).parent.name if code is not None else ""


def refuse(name: str, config: Mapping[str, Any]) -> None:
    why = reason(config)
    if why is not None:
        raise DataError(f"{PREFIX}{name} cannot run in mill: {why}")


def needs_judge(config: Mapping[str, Any]) -> bool:
    return calls_judge(scoring_functions(config))
