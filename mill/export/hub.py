"""A model card with the scores, and `.eval_results/*.yaml` for the leaderboards of the Hugging Face Hub.

Nothing is uploaded: the folder of a model is what its repository gets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from mill.api.errors import MillError, MissingPackage
from mill.api.registry import tasks
from mill.api.task import TaskType
from mill.export.run import ExportedRun, clean
from mill.export.target import Exporter
from mill.report.collect import sampled_sentences, sampled_text
from mill.report.sections import manifest_about
from mill.report.tables import escape, markdown_table, number
from mill.store.schema import TaskResult
from mill.support.files import short_name, slug, write_atomically
from mill.support.terminal import warn
from mill.tasks.data import Dataset
from mill.tasks.load import load_builtin, make_task

README = "README.md"
_COLUMNS = ("task", "shots", "metric", "value", "stderr", "95 % interval", "n", "failed", "settings")
_SAMPLED = "sampled"  # a column where some rows are not over all samples
_NUMBERS = ("shots", "value", "stderr", "n", "failed")
_TASK_TYPES = {TaskType.MULTIPLE_CHOICE.value: "multiple-choice"}  # names of the Hub; the others generate text


def write_hub(runs: Sequence[ExportedRun], folder: Path, *, samples: bool = True) -> list[Path]:
    """A folder for each model; `samples` has no effect, since neither file has any."""
    by_model: dict[str, list[ExportedRun]] = {}
    for run in runs:
        by_model.setdefault(run.model, []).append(run)
    files = []
    for model, own in by_model.items():
        inner = folder / short_name(slug(model)) if len(by_model) > 1 else folder
        for name, entries in eval_results(own).items():
            files.append(inner / ".eval_results" / f"{short_name(slug(name))}.yaml")
            text = yaml.safe_dump(entries, sort_keys=False, allow_unicode=True)
            write_atomically(files[-1], text, root=folder)
        files.append(inner / README)
        write_atomically(files[-1], model_card(model, own), root=folder)
    return files


def eval_results(runs: Sequence[ExportedRun]) -> dict[str, list[dict[str, Any]]]:
    """The entries of each task whose data is on the Hub, by task. Others are in the model card alone."""
    hub = _hub()
    found: dict[str, list[dict[str, Any]]] = {}
    without: list[str] = []
    for run in runs:
        for name, result in run.results.tasks.items():
            data, metric = dataset_of(name), next(iter(result.metrics), None)
            if metric is None or not math.isfinite(result.metrics[metric].value):
                warn(f"{name}: {metric or 'no metric'} has no finite value, so that .eval_results has none of {clean(name)}")
                continue
            if data is None:
                without.append(clean(name))
                continue
            entry = hub.EvalResultEntry(
                dataset_id=data.name,
                task_id=data.config or clean(name),
                value=result.metrics[metric].value,
                date=f"{run.ended:%Y-%m-%dT%H:%M:%SZ}",
                notes=_notes(run, result, metric),
            )
            found.setdefault(name, []).append(entry)
    if without:
        warn(f"no dataset of the Hub is known for {', '.join(dict.fromkeys(without))}: these are in the model card alone")
    return {name: hub.eval_result_entries_to_yaml(entries) for name, entries in found.items()}


def dataset_of(task: str) -> Dataset | None:
    """The dataset of a built-in task on the Hub; None for other tasks."""
    load_builtin()
    if task not in tasks:
        return None
    try:
        made = make_task(task)
    except MillError:  # a benchmark of several tasks, or a task whose file is not loaded
        return None
    found = getattr(made, "dataset", None) or getattr(getattr(made, "questions", None), "dataset", None)
    return found if isinstance(found, Dataset) else None


def _notes(run: ExportedRun, result: TaskResult, metric: str) -> str:
    """How the value was measured: a leaderboard shows it beside others. Why it is not over all data, and what distinguishes
    runs of one model: dtype, quantization and other arguments, and settings."""
    estimate = result.metrics[metric]
    part = f"{estimate.n} of {result.total} samples" if estimate.n < result.total else f"{estimate.n} samples"
    stderr = f", standard error {number(estimate.stderr)}" if estimate.stderr is not None else ""
    failed = f", {result.failed} failed" if result.failed else ""
    mill = f"mill {run.versions['mill']}" if "mill" in run.versions else "mill"
    measured = f"{clean(result.task)}: {clean(metric)}, {result.n_shots}-shot, {part}{failed}{stderr}, {run.backend}, {mill}"
    pending = f"stopped at a budget: {result.pending} samples did not run" if result.pending else ""
    unjudged = f"stopped at a budget: {result.not_judged} samples were not judged" if result.not_judged else ""
    model = {**run.manifest["model"], "arguments": run.arguments}
    about = dict(manifest_about({**run.manifest, "model": model, "settings": run.settings}))
    own = [f"{name} {clean(about[name])}" for name in ("dtype", "arguments", "settings") if name in about]
    return "; ".join(filter(None, [measured, sampled_sentences([result]), pending, unjudged, *own]))


def model_card(model: str, runs: Sequence[ExportedRun]) -> str:
    """A model card: the metadata `model-index`, and the scores of `mill collect` as a table."""
    hub = _hub()
    data = hub.ModelCardData(model_name=model, eval_results=_card_results(hub, runs) or None)
    lines = [f"---\n{data.to_yaml()}\n---", f"# {escape(model)}", "## Evaluation", _table(runs)]
    for run in runs:
        failed, unanswered = (sum(getattr(one, name) for one in run.counts.values()) for name in ("failed", "unanswered"))
        counted = f" {failed} samples failed and {unanswered} were not answered." if failed or unanswered else ""
        version = f" {run.versions['mill']}" if "mill" in run.versions else ""
        when = f"{run.ended:%Y-%m-%d}"
        lines.append(f"Evaluated with mill{version} on {when}, backend {escape(run.backend)}, run `{run.uid}`.{counted}")
    return "\n\n".join(lines) + "\n"


def _table(runs: Sequence[ExportedRun]) -> str:
    """The scores of all runs; `n` are samples with a score, of the total where that is larger. Means over some of a
    benchmark's tasks are left out: beside those of other models they would be compared with means over all."""
    rows = [row for run in runs for row in run.score_rows() if not row["mean_of"]]
    more = [_SAMPLED] if any(row[_SAMPLED] for row in rows) else []
    columns = [*_COLUMNS, *more]
    lines: list[list[str]] = []
    for row in rows:
        n = f"{row['n']} of {row['total']}" if row["n"] < row["total"] else str(row["n"])
        interval = "-" if row["low"] is None else f"{number(row['low'])} to {number(row['high'])}"
        task = row["task"] or f"{row['benchmark']} (mean)"
        cells = [task, row["n_shots"], row["metric"], number(row["value"]), number(row["stderr"]), interval, n]
        cells += [row["failed"], row["settings"], *(row[name] for name in more)]
        lines.append([escape(str(cell)) for cell in cells])
    return "\n".join(markdown_table(columns, lines, _NUMBERS))


def _card_results(hub: Any, runs: Sequence[ExportedRun]) -> list[Any]:
    """An entry for each metric of each task. The card's format has no NaN: such values are in the table alone."""
    entries = []
    for run in runs:
        for name, result in run.results.tasks.items():
            data, task_type = dataset_of(name), _TASK_TYPES.get(result.task_type, "text-generation")
            arguments = {"n_shots": result.n_shots, "settings": clean(run.folder.path.name)}
            arguments |= {_SAMPLED: sampled} if (sampled := sampled_text([result])) else {}
            for metric, estimate in result.metrics.items():
                if not math.isfinite(estimate.value):
                    continue
                entries.append(
                    hub.EvalResult(
                        task_type=task_type,
                        dataset_type=data.name if data else slug(name),
                        dataset_name=clean(name),
                        dataset_config=data.config if data else None,
                        metric_type=clean(metric),
                        metric_name=clean(metric),
                        metric_value=estimate.value,
                        metric_config=None,
                        metric_args={**arguments, "n": estimate.n},
                    )
                )
    return entries


def _hub() -> Any:
    """huggingface_hub, from the version on that has `.eval_results`."""
    try:
        import huggingface_hub

        huggingface_hub.EvalResultEntry  # noqa: B018  imported when it is used
    except (ImportError, AttributeError):
        raise MissingPackage("the target hub", "huggingface_hub>=1.4", "hub") from None
    return huggingface_hub


EXPORTER = Exporter(
    name="hub",
    about="a model card with its `model-index`, and `.eval_results/*.yaml` for the leaderboards of the Hugging Face Hub",
    write=write_hub,
    package="huggingface_hub",
    extra="hub",
)
