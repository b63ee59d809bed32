"""A results file of lm-eval as a run: its model, settings, tasks, groups and metrics."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mill.api.errors import RunError
from mill.api.task import TaskType
from mill.metrics.estimate import Estimate
from mill.store.folder import RunFolder
from mill.store.schema import BenchmarkResult, SessionEntry, TaskResult
from mill.support.secrets import redact
from mill.support.validate import read_file
from mill.view.other_logs.find import LM_EVAL, OtherLog, task_of
from mill.view.other_logs.lm_eval_samples import LmEvalResults, read_lm_eval_samples
from mill.view.other_logs.write import ConvertedRun, TaskLog, tool_estimate, write_run, write_task

_STDERR = "_stderr"
_NO_FILTER = ",none"
_TYPES = {
    "multiple_choice": TaskType.MULTIPLE_CHOICE,
    "loglikelihood": TaskType.MULTIPLE_CHOICE,
    "loglikelihood_rolling": TaskType.PERPLEXITY,
    "generate_until": TaskType.GENERATIVE_QA,
}


def convert_lm_eval(log: OtherLog, folder: RunFolder) -> None:
    found = read_file(log.path, LmEvalResults, RunError)
    samples = {task_of(file): file for file in log.files[1:]}
    run = _run(log, found)
    written = [write_task(folder, run.model, _task(name, found, samples.get(name))) for name in _task_names(found, samples)]
    run.session.requested = run.session.computed = sum(counts.responses for _, _, counts in written)
    results = {result.task: result for _, result, _ in written}
    write_run(folder, run, [entry for entry, _, _ in written], results.values(), _benchmarks(found, results))


def _task_names(found: LmEvalResults, samples: Mapping[str, Path]) -> list[str]:
    """The tasks, without groups: those have subtasks, or none of what a task has."""
    known = found.configs.keys() | found.n_samples.keys() | samples.keys()
    return [name for name in found.results if name in known] + [name for name in samples if name not in found.results]


def _task(name: str, found: LmEvalResults, samples: Path | None) -> TaskLog:
    config, count = found.configs.get(name, {}), found.n_samples.get(name)
    shots, version = found.n_shot.get(name), found.versions.get(name)
    n = count.effective if count else None
    return TaskLog(
        name,
        None if samples is None else read_lm_eval_samples(samples, name, config),
        metrics=estimates(found.results.get(name, {}), n or 0),
        version=version if isinstance(version, (int, str)) else "" if version is None else str(version),
        task_type=_TYPES.get(str(config.get("output_type")), TaskType.GENERATIVE_QA).value,
        n_shots=shots if isinstance(shots, int) else 0,
        n=n,
        total=count.original if count else 0,
        data_hash=found.task_hashes.get(name, ""),
    )


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
        tasks = [task for task in _leaves(name, found.group_subtasks, set()) if task in results]
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


def _leaves(name: str, subtasks: Mapping[str, list[str]], seen: set[str]) -> list[str]:
    """The tasks of a group and of the groups in it, each once."""
    found = []
    pending = [name]
    while pending:
        one = pending.pop(0)
        if one not in seen:
            seen.add(one)
            below = subtasks.get(one, [])
            found += [] if below else [one]
            pending = [*below, *pending]
    return found


def _run(log: OtherLog, found: LmEvalResults) -> ConvertedRun:
    config = found.config
    arguments = _arguments(config.get("model_args"))
    backend = found.model_source or str(config.get("model") or "")
    model = found.model_name or str(arguments.get("pretrained") or arguments.get("model") or backend or "unknown")
    versions = {"lm-eval": found.lm_eval_version, "transformers": found.transformers_version, "git": found.git_hash}
    about = {
        "model": {"name": model, "backend": backend, "arguments": redact(arguments), "identity": {}},
        "settings": {name: value for name, value in _settings(found).items() if value not in (None, {}, "")},
        "versions": {name: version for name, version in versions.items() if version},
        "source": {"tool": LM_EVAL, "path": str(log.path)},
    }
    return ConvertedRun(model, about, _session(found))


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
