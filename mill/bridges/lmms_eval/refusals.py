"""Which tasks of lmms-eval mill cannot run, and why: known from a task's configuration, before its data are loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mill.api.errors import DataError
from mill.bridges.lmms_eval.library import PREFIX
from mill.bridges.lmms_eval.reach import aggregating_functions, calls_judge, scoring_functions

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
