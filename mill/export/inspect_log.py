"""Runs as logs of inspect_ai: one `.eval` file for each task, which `read_eval_log` and `inspect view` open.

A repeat is an epoch, a metric is a scorer. Samples that are not answered yet are left out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

from mill.api.errors import MissingPackage
from mill.export.inspect_sample import inspect_samples, model_name
from mill.export.run import FAILED, FINISHED, ExportedRun, clean
from mill.report.partial import first_rows, sampled_sentences
from mill.runs.schema import TaskResult
from mill.support.files import read_bytes, short_name, slug, write_atomically
from mill.support.terminal import utf8

_STATUS = {FINISHED: "success", FAILED: "error"}
_OPTIONS = ("temperature", "top_p", "top_k", "seed", "frequency_penalty", "presence_penalty")


def write_inspect(runs: Sequence[ExportedRun], folder: Path, *, samples: bool = True) -> list[Path]:
    try:
        from inspect_ai.log import write_eval_log
    except ImportError:
        raise MissingPackage("the target inspect", "inspect_ai", "inspect") from None
    files = []
    for run in runs:
        for task in run.tasks:
            name = short_name(slug(task)).replace("_", "-")
            file = folder / f"{run.started:%Y-%m-%dT%H-%M-%S}-00-00_{name}_{task_id(run, task)}.eval"
            with tempfile.TemporaryDirectory() as draft:  # inspect_ai writes to a path alone
                write_eval_log(eval_log(run, task, samples=samples), str(Path(draft) / file.name), format="eval")
                write_atomically(file, read_bytes(Path(draft) / file.name), root=folder)
            files.append(file)
    return files


def task_id(run: ExportedRun, task: str) -> str:
    """The same for each export of this task of this run."""
    return blake2b(utf8(f"{run.uid} {task}"), digest_size=11).hexdigest()


def eval_log(run: ExportedRun, task: str, *, samples: bool) -> Any:
    """An `EvalLog` of one task."""
    from inspect_ai.log import EvalLog, EvalPlan, EvalPlanStep, EvalStats

    found = inspect_samples(run, task)
    result = run.results.tasks.get(task)
    return EvalLog(
        status=_STATUS.get(run.status, "cancelled") if result is None else "success",
        eval=_spec(run, task, [sample.id for sample in found]),
        plan=EvalPlan(steps=[EvalPlanStep(solver="mill")]),
        results=None if result is None else _results(run, result),
        stats=EvalStats(
            started_at=run.started.isoformat(), completed_at=run.ended.isoformat(), model_usage=_usage(run, found)
        ),
        samples=found if samples else None,
    )


def _spec(run: ExportedRun, task: str, ids: Sequence[str]) -> Any:
    from inspect_ai.log import EvalConfig, EvalDataset, EvalSpec
    from inspect_ai.model import GenerateConfig

    entry, settings, result = run.manifest["tasks"][task], run.settings, run.results.tasks.get(task)
    text = sampled_sentences([result]) if result is not None else ""
    sampled = {"sampled": clean(text)} if text else {}
    given = settings.get("gen_kwargs") or {}
    options = {name: given[name] for name in _OPTIONS if isinstance(given.get(name), (int, float))}
    limit = given.get("max_gen_toks")
    if isinstance(limit, int):
        options["max_tokens"] = limit
    repeats = settings.get("repeats")
    return EvalSpec(
        eval_id=task_id(run, task),
        run_id=run.uid,
        created=run.started.isoformat(),
        task=clean(task),
        task_id=task_id(run, task),
        task_version=entry.get("version", 0),
        task_args={"n_shots": entry.get("n_shots", 0)},
        dataset=EvalDataset(name=clean(task), samples=entry["total"], sample_ids=list(dict.fromkeys(ids))),
        model=model_name(run),
        model_args=run.arguments,
        model_generate_config=GenerateConfig(**options),
        config=EvalConfig(
            limit=first_rows([result]) if result is not None else None, epochs=repeats if isinstance(repeats, int) else 1
        ),
        packages=run.versions,
        metadata={"mill": {"run": run.uid, "status": run.status, "settings": settings, **sampled}},
    )


def _results(run: ExportedRun, result: TaskResult) -> Any:
    from inspect_ai.log import EvalMetric, EvalResults, EvalScore

    count = run.counts[result.task]
    scores = []
    for name, estimate in result.metrics.items():
        values = {"mean": estimate.value, "stderr": estimate.stderr, "low": estimate.low, "high": estimate.high}
        metrics = {key: EvalMetric(name=key, value=value) for key, value in values.items() if value is not None}
        scores.append(
            EvalScore(
                name=clean(name),
                scorer=clean(name),
                scored_samples=estimate.n,
                unscored_samples=max(0, count.planned - estimate.n),
                metrics=metrics,
            )
        )
    return EvalResults(
        total_samples=count.planned,
        completed_samples=count.done - count.failed,
        scores=scores,
        metadata={"failed": count.failed, "unanswered": count.unanswered, "warnings": [*map(clean, result.warnings)]},
    )


def _usage(run: ExportedRun, samples: Sequence[Any]) -> dict[str, Any]:
    from inspect_ai.model import ModelUsage

    total = ModelUsage()
    for sample in samples:
        for usage in sample.model_usage.values():
            total = total + usage
    return {model_name(run): total} if samples else {}
