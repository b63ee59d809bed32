"""Runs as lm-eval 0.4 writes them with `--log_samples --output_path`: results_DATE.json and samples_TASK_DATE.jsonl in a
folder of the model. Samples without a score are counted in the results, under `mill`, since lm-eval has none."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from mill.api.task import TaskType
from mill.export.run import (
    ExportedRun,
    clean,
    is_number,
    repeat_values,
    result_name,
    shown_text,
    target_text,
)
from mill.export.target import Exporter
from mill.metrics.differences import LOWER, direction
from mill.report.collect import first_rows, sampled_sentences
from mill.store.sample_row import SampleRow
from mill.store.samples import RunSample, sample_of
from mill.store.schema import BenchmarkResult, TaskResult
from mill.support.files import short_name, write_atomically
from mill.support.terminal import utf8, warn

NO_FILTER = "none"
_SOURCE = "lm-eval:"  # in the names of lm-eval's tasks in mill
_OUTPUT_TYPES = {
    TaskType.MULTIPLE_CHOICE.value: "multiple_choice",
    TaskType.PERPLEXITY.value: "loglikelihood_rolling",
}


def write_lm_eval(runs: Sequence[ExportedRun], folder: Path, *, samples: bool = True) -> list[Path]:
    files = []
    for run in runs:
        inner, date, hashes, names = folder / sanitized(run.model), file_date(run), {}, task_names(run)
        for task in run.results.tasks if samples else ():
            files.append(inner / f"samples_{names[task]}_{date}.jsonl")
            hashes[names[task]] = _write_samples(run, task, files[-1], folder)
        files.append(inner / f"results_{date}.json")
        content = {**results(run, names), "task_hashes": hashes, **_experiment(run)}
        # NaN is a number here, as in lm-eval's own files.
        write_atomically(files[-1], json.dumps(content, indent=2, ensure_ascii=False, default=str), root=folder)
    return files


def sanitized(model: str) -> str:
    """A name in a path, as lm-eval writes it; a long one is cut."""
    return short_name(re.sub(r"[\"<>:/|\\?*\[\]]+", "__", model) or "_")


def task_names(run: ExportedRun) -> dict[str, str]:
    """The name of each task and benchmark in lm-eval's files: its own for tasks of lm-eval, else one that can be in the name
    of a file, since readers join results and samples by it."""
    names: dict[str, str] = {}
    for result in run.scored:
        name = result_name(result)
        own = sanitized(name.removeprefix(_SOURCE))
        names[name] = own if own not in names.values() else sanitized(name)
    return names


def file_date(run: ExportedRun) -> str:
    """The start of the run, as in the names of lm-eval's files. The microseconds are those of its id: runs of one second
    have different files, and a run that was extended replaces its own."""
    return f"{run.started:%Y-%m-%dT%H-%M-%S}.{int(run.uid, 16) % 1_000_000:06d}"


def results(run: ExportedRun, names: Mapping[str, str]) -> dict[str, Any]:
    """What lm-eval's evaluator returns, as far as a run has it."""
    tasks = {names[name]: task for name, task in run.results.tasks.items()}
    scored = complete_means(run)
    groups = {names[one.benchmark]: one for one in scored if isinstance(one, BenchmarkResult)}
    entries = {names[result_name(one)]: _entry(names[result_name(one)], one) for one in scored}
    settings = run.settings
    return {
        "results": entries,
        **({"groups": {name: entries[name] for name in groups}} if groups else {}),
        "group_subtasks": {name: [names[task] for task in group.tasks if task in names] for name, group in groups.items()},
        "configs": {
            name: {
                "task": name,
                "output_type": _OUTPUT_TYPES.get(task.task_type, "generate_until"),
                "num_fewshot": task.n_shots,
                "repeats": settings.get("repeats", 1),
                "metric_list": [{"metric": metric} for metric in task.metrics],
                "target_delimiter": " ",
                "metadata": {"version": task.version},
            }
            for name, task in tasks.items()
        },
        "versions": {name: task.version for name, task in tasks.items()},
        "n-shot": {name: task.n_shots for name, task in tasks.items()},
        "higher_is_better": {
            names[result_name(one)]: {metric.partition(",")[0]: direction(metric) != LOWER for metric in one.metrics}
            for one in scored
        },
        "n-samples": {name: {"original": task.total, "effective": task.n} for name, task in tasks.items()},
        "config": {
            "model": run.backend,
            "model_args": run.arguments,
            "batch_size": run.arguments.get("batch_size"),
            "limit": first_rows(tasks.values()),
            **({"mill_sampled": clean(sampled)} if (sampled := sampled_sentences(tasks.values())) else {}),
            "gen_kwargs": settings.get("gen_kwargs") or None,
            "fewshot_seed": settings.get("seed"),
        },
        "mill": {
            "run": run.uid,
            "status": run.status,
            "samples": {
                names.get(name, name): {"n": count.done, "failed": count.failed, "unanswered": count.unanswered}
                for name, count in run.counts.items()
            },
        },
        "git_hash": None,
        "date": run.started.timestamp(),
        "transformers_version": run.versions.get("transformers"),
        "lm_eval_version": run.versions.get("lm-eval"),
        "mill_version": run.versions.get("mill"),
    }


def complete_means(run: ExportedRun) -> list[TaskResult | BenchmarkResult]:
    """The results but for means over some of a benchmark's tasks: a group is the mean of all."""
    partial = [one.benchmark for one in run.results.benchmarks.values() if one.missing]
    if partial:
        warn(f"left out, since tasks have no value: the means of {', '.join(map(clean, partial))}")
    return [one for one in run.scored if isinstance(one, TaskResult) or not one.missing]


def _entry(named: str, result: TaskResult | BenchmarkResult) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": named, "alias": named, "sample_len": result.n}
    for metric, estimate in result.metrics.items():
        name, comma, filter_name = metric.rpartition(",")
        own, kind = (name, filter_name) if comma else (metric, NO_FILTER)
        stderr = "N/A" if estimate.stderr is None else estimate.stderr
        entry |= {f"{own},{kind}": estimate.value, f"{own}_stderr,{kind}": stderr}
    return entry


def _experiment(run: ExportedRun) -> dict[str, Any]:
    system = run.settings.get("system_prompt")
    return {
        "model_source": run.backend,
        "model_name": run.model,
        "model_name_sanitized": sanitized(run.model),
        "system_instruction": system,
        "system_instruction_sha": _hash(system) if isinstance(system, str) else None,
        "fewshot_as_multiturn": run.settings.get("fewshot_as_multiturn"),
        "chat_template": None,
        "chat_template_sha": None,
        "total_evaluation_time_seconds": str(run.seconds),
    }


def _write_samples(run: ExportedRun, task: str, file: Path, root: Path) -> str:
    """Write the lines of a task's samples one at a time. Returns the digest of their digests."""
    hashes: list[str] = []

    def write(handle: IO[bytes]) -> None:
        numbered = run.counts[task].decimal_ids
        for index, row in enumerate(run.rows(task)):
            if row.error is None and any(row.responses):
                for line in _lines(row, int(row.id) if numbered else index, run.settings.get("gen_kwargs") or {}):
                    hashes.append(line["doc_hash"] + line["prompt_hash"] + line["target_hash"])
                    handle.write(utf8(json.dumps(line, ensure_ascii=False, default=str)) + b"\n")

    write_atomically(file, write, root=root)
    return _hash("".join(hashes))


def _lines(row: SampleRow, doc_id: int, gen_kwargs: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """lm-eval has a line for each filter of a metric: `exact_match,strict-match`."""
    arguments, resps = _requests(row, sample_of(row), gen_kwargs)
    target, doc = _target(row), row.doc
    values = repeat_values(row, 0) if len(row.keys) == 1 else {name: row.mean(name) for name in row.values}
    by_filter: dict[str, dict[str, Any]] = {}
    for metric, value in values.items():
        name, comma, filter_name = metric.rpartition(",")
        by_filter.setdefault(filter_name if comma else NO_FILTER, {})[name if comma else metric] = _plain(value)
    for filter_name, metrics in (by_filter or {NO_FILTER: {}}).items():
        yield {
            "doc_id": doc_id,
            "doc": doc,
            "target": target,
            "arguments": {
                f"gen_args_{number}": {f"arg_{index}": part for index, part in enumerate(parts)}
                for number, parts in enumerate(arguments)
            },
            "resps": resps,
            "filtered_resps": [draws[0] for draws in resps],
            "filter": filter_name,
            "metrics": list(metrics),
            "doc_hash": _hash(json.dumps(doc, indent=2, default=str, ensure_ascii=False)),
            "prompt_hash": _hash(str(arguments[0][0])),
            "target_hash": _hash(target),
            **metrics,
        }


def _requests(row: SampleRow, sample: RunSample, gen_kwargs: Mapping[str, Any]) -> tuple[list[list[Any]], list[list[Any]]]:
    """The arguments of each request, and its responses: one for each repeat, numbers as texts."""
    repeats, continuations = sample.responses, row.continuations
    if row.messages:  # the last round stands for the dialog, of which lm-eval has one round
        return [[row.prompt, dict(gen_kwargs)]], [[shown_text(repeat) or "" for repeat in repeats]]
    count = min(map(len, repeats))
    prompts = row.prompts or [row.prompt] * count
    arguments: list[list[Any]] = []
    resps: list[list[Any]] = []
    for index in range(count):
        context, draws = prompts[min(index, len(prompts) - 1)], [repeat[index] for repeat in repeats]
        if draws[0].score is None:
            arguments.append([context, dict(gen_kwargs)])
            resps.append([draw.text if draw.text is not None else draw.label or "" for draw in draws])
        elif index < len(continuations):
            arguments.append([context, continuations[index]])
            resps.append([[str(draw.score), str(bool(draw.is_greedy))] for draw in draws])
        else:
            arguments.append([context])
            resps.append([str(draw.score) for draw in draws])
    return arguments, resps


def _target(row: SampleRow) -> str:
    """The gold answer; of multiple choice the index of the choice, as in lm-eval."""
    target = target_text(row)
    found = [index for index, choice in enumerate(row.choices or ()) if choice == target]
    return str(found[0]) if len(found) == 1 else target


def _plain(value: Any) -> Any:
    """A value as lm-eval writes it: NaN and infinity are numbers."""
    if is_number(value):
        return float(value)
    return [_plain(one) for one in value] if isinstance(value, list) else value


def _hash(text: str) -> str:
    return hashlib.sha256(utf8(text)).hexdigest()


EXPORTER = Exporter(
    name="lm-eval",
    about="`results_DATE.json` and `samples_TASK_DATE.jsonl`, as lm-eval writes them with `--log_samples --output_path`",
    write=write_lm_eval,
)
