"""A log of inspect_ai as a run: its model, settings, task and metrics.

A score has the name of its scorer, `SCORER/NAME` where the scorer gives several. Its accuracy or mean has that name as
well, since it sums up the values of the samples; other metrics are `SCORE/METRIC`. `SCORE@REDUCER` are those of epochs
that are not reduced to their mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

from mill.api.errors import RunError
from mill.api.task import TaskType
from mill.metrics.estimate import Estimate
from mill.store.folder import RunFolder
from mill.store.schema import SessionEntry
from mill.support.secrets import redact
from mill.view.other_logs.find import INSPECT, OtherLog
from mill.view.other_logs.inspect_files import InspectLog, in_order, open_inspect_log
from mill.view.other_logs.inspect_samples import convert_sample
from mill.view.other_logs.inspect_schema import InspectHeader, InspectScores
from mill.view.other_logs.write import (
    BrokenSample,
    ConvertedRun,
    ConvertedSample,
    TaskLog,
    tool_estimate,
    write_run,
    write_task,
)

_MEANS = ("accuracy", "mean")
_STDERR = "stderr"
_ENDED = {"success": "finished", "cancelled": "interrupted", "error": "failed"}
_NO_SETTINGS = ("max_connections", "max_retries", "timeout")  # of the generation options: they change no answer


def convert_inspect(log: OtherLog, folder: RunFolder) -> None:
    with open_inspect_log(log.path) as file:
        header = file.header
        run = _run(log, header)
        results, epochs = header.results, max(1, header.eval.config.epochs or 1)
        task = TaskLog(
            header.eval.task,
            _samples(file) if file.epochs else None,
            metrics=estimates(results.scores, epochs, results.completed_samples // epochs) if results else {},
            version=header.eval.task_version,
            task_type=TaskType.GENERATIVE_QA.value,
            total=header.eval.dataset.samples or 0,
            warnings=_warnings(header),
        )
        entry, result, counts = write_task(folder, run.model, task)
    run.session.requested = run.session.computed = counts.responses
    run.session.failed = counts.errors
    write_run(folder, run, [entry], [result])


def _samples(file: InspectLog) -> Iterator[ConvertedSample | BrokenSample]:
    for name in in_order(list(file.epochs), file.header.eval.dataset.sample_ids or ()):
        try:
            yield convert_sample(list(file.read(name)))
        except (RunError, RecursionError) as error:
            yield BrokenSample(str(error))


def estimates(scores: Sequence[InspectScores], epochs: int, n: int) -> dict[str, Estimate]:
    """The metrics of all scores; the standard error is that of the accuracy or mean. `n` is the number of samples of scores
    that do not say it, as in logs of older versions."""
    metrics = {}
    for score in scores:
        name = score.name if score.scorer in ("", score.name) else f"{score.scorer}/{score.name}"
        if epochs > 1 and score.reducer not in (None, "mean"):
            name += f"@{score.reducer}"
        values = {metric: found.value for metric, found in score.metrics.items() if found.value is not None}
        mean = next((metric for metric in _MEANS if metric in values), None)
        stderr = values.pop(_STDERR, None) if mean else None
        for metric, value in values.items():
            own = f"{name}/{metric}" if metric != mean else name
            metrics[own] = tool_estimate(value, stderr if metric == mean else None, score.scored_samples or n)
    return metrics


def _warnings(header: InspectHeader) -> list[str]:
    warnings = [f"the evaluation failed: {header.error.message}"] if header.error else []
    if header.status in ("started", "cancelled"):
        warnings.append("the evaluation was cancelled" if header.status == "cancelled" else "the evaluation has not ended")
    return warnings


def _run(log: OtherLog, header: InspectHeader) -> ConvertedRun:
    """inspect_ai names a model `PROVIDER/MODEL`."""
    spec = header.eval
    backend, slash, name = spec.model.partition("/")
    arguments = {**spec.model_args, **({"base_url": spec.model_base_url} if spec.model_base_url else {})}
    model = name if slash else spec.model
    about = {
        "model": {"name": model, "backend": backend, "arguments": redact(arguments), "identity": {}},
        "settings": {name: value for name, value in _settings(header).items() if value not in (None, {}, [])},
        "versions": spec.packages,
        "source": {"tool": INSPECT, "path": str(log.path)},
    }
    return ConvertedRun(model, about, _session(header))


def _settings(header: InspectHeader) -> dict[str, Any]:
    config = header.eval.config
    options = {**header.eval.model_generate_config, **header.plan.config}
    return {
        "gen_kwargs": {name: value for name, value in options.items() if name not in _NO_SETTINGS},
        "repeats": config.epochs,
        "epochs_reducer": config.epochs_reducer,
        "limit": config.limit,
        "task_args": header.eval.task_args,
        "solvers": [step.solver for step in header.plan.steps],
    }


def _session(header: InspectHeader) -> SessionEntry:
    started, completed = _time(header.stats.started_at or header.eval.created), _time(header.stats.completed_at)
    usage = header.stats.model_usage.get(header.eval.model)
    return SessionEntry(
        id=header.eval.eval_id or "1",
        order=1,
        started=started.strftime("%Y-%m-%dT%H:%M:%SZ") if started else "-",
        ended=_ENDED.get(header.status, "unfinished"),
        seconds=max(0.0, (completed - started).total_seconds()) if started and completed else 0.0,
        prompt_tokens=usage.prompt_tokens if usage else 0,
        output_tokens=usage.output_tokens if usage else 0,
        reasoning_tokens=(usage.reasoning_tokens or 0) if usage else 0,
    )


def _time(text: str) -> datetime | None:
    """A time as inspect_ai writes it; None for anything else."""
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
        return found.astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return None
