"""All scores below an output folder as one long table: a row for each model, task and metric; rows as data frames. In few
words, what a score is over where that is not all data of all tasks, and what was decided on it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mill.api.errors import import_pandas
from mill.plan.sampling import describe_choice, is_random
from mill.report.tables import Listing, number, shown_name
from mill.score.recorded_run import RecordedRun, read_runs
from mill.store.folder import RunFolder
from mill.store.schema import BenchmarkResult, Decision, Results, TaskResult, failed_samples

_METHODS = {"sequential": "random, until decided:"}  # in words, where the name of the method does not say it


def sampled_text(tasks: Iterable[TaskResult]) -> str:
    """`random 300 of 3000, seed 0`, over all tasks with the same method and seed together; empty where all samples ran."""
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    for task in tasks:
        if task.sampled is not None:
            method = _METHODS.get(task.sampled.method, task.sampled.method)
            key = method, f", seed {task.sampled.seed}" if is_random(task.sampled) else ""
            n, total = counts.get(key, (0, 0))
            counts[key] = n + task.n, total + task.total
    return "; ".join(f"{method} {n} of {total}{seed}" for (method, seed), (n, total) in counts.items())


def sampled_sentences(tasks: Iterable[TaskResult]) -> str:
    """`sampled_text` with what it means for the scores, for formats whose own fields cannot say which samples ran."""
    known = [task for task in tasks if task.sampled is not None]
    meant = (describe_choice(task.sampled, task.n, task.total) for task in known if task.sampled is not None)
    return "; ".join(dict.fromkeys(filter(None, [sampled_text(known), *meant])))


def first_rows(tasks: Iterable[TaskResult]) -> int | None:
    """The limit with which these samples are the first rows of each task; None where all ran, or others than those."""
    known = list(tasks)
    limit = max((task.n for task in known if task.n < task.total), default=None)
    for task in known:
        # Results of earlier versions do not say which samples ran; those of a run that stopped at its budget do.
        starts = task.sampled.method == "first" if task.sampled is not None else not (task.pending and task.n)
        if limit is None or not starts or task.n != min(limit, task.total):
            return None
    return limit


def decision_text(decisions: Iterable[Decision], about: Collection[str] | None = None) -> str:
    """`toy_exam: acc>0.6 is true`; empty where nothing was decided, of these tasks and benchmarks where they are given."""
    return "; ".join(f"{one.of}: {one.claim} is {one.outcome}" for one in decisions if about is None or one.of in about)


def mean_of_tasks(result: TaskResult | BenchmarkResult) -> str:
    """`1 of 3` for a benchmark's mean over some of its tasks, since the others have no value; else empty."""
    if isinstance(result, TaskResult) or not result.missing:
        return ""
    return f"{len(result.tasks) - len(result.missing)} of {len(result.tasks)}"


def mean_name(benchmark: str, of: str) -> str:
    """The name of a benchmark's mean in tables; `of` is that of `mean_of_tasks`."""
    return f"{benchmark} (mean of {of})" if of else f"{benchmark} (mean)"


if TYPE_CHECKING:
    import pandas as pd


def data_frame(what: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> pd.DataFrame:
    """`what` needs pandas. Its own type of texts, which newer versions infer, is UTF-8: where a text is not, columns keep
    Python's objects, and numbers are inferred."""
    pandas = import_pandas(what)
    chosen = None if columns is None else list(columns)
    try:
        return pandas.DataFrame(rows, columns=chosen)
    except UnicodeEncodeError:
        frame = pandas.DataFrame(rows, columns=chosen, dtype=object)
        for name in frame:
            if not any(isinstance(value, str) for value in frame[name]):
                frame[name] = frame[name].infer_objects()
        return frame


COLUMNS = (
    "model", "model_args", "settings", "benchmark", "task", "task_type", "n_shots", "metric", "value", "stderr", "low",
    "high", "n", "failed", "total", "run", "mean_of", "sampled", "decision",
)  # fmt: skip
TABLE_COLUMNS = ("model", "task", "n_shots", "metric", "value", "stderr", "n", "failed")
NUMBERS = ("n_shots", "value", "stderr", "low", "high", "n", "failed", "total")


def collect(output_dir: Path) -> list[dict[str, Any]]:
    """One row for each metric; a benchmark's own row has no task, a task's row has the benchmark it belongs to.

    `n` samples were scored and `failed` have no score, of `total` in the data. `model_args` has the arguments that
    distinguish runs of models with the same name; it is empty where the name is enough.

    `mean_of` is `1 of 3` where a benchmark's mean lacks tasks. `sampled` and `decision` are in words.
    """
    return run_rows(read_runs(output_dir))


def run_rows(runs: Iterable[RecordedRun]) -> list[dict[str, Any]]:
    """The rows of several runs."""
    return [{**row, "model_args": run.arguments} for run in runs for row in score_rows(run.model, run.folder, run.results)]


def score_rows(model: str, folder: RunFolder, results: Results) -> list[dict[str, Any]]:
    """The rows of one run, with all `COLUMNS`; `model` is the model's name."""
    base = {"model": model, "model_args": "", "settings": folder.path.name, "run": str(folder.path)}
    means, known, rows = list(results.benchmarks.values()), list(results.tasks.values()), list[dict[str, Any]]()
    decisions = results.decisions.values()
    for task in known:
        owner = min((mean for mean in means if task.task in mean.tasks), key=lambda mean: len(mean.tasks), default=None)
        benchmark = owner.benchmark if owner else task.task
        names = {"benchmark": benchmark, "task": task.task, "task_type": task.task_type, "n_shots": task.n_shots}
        about = [task.task, *(mean.benchmark for mean in means if task.task in mean.tasks)]
        names |= {"sampled": sampled_text([task]), "decision": decision_text(decisions, about)}
        rows += _rows({**base, **names}, task)
    for mean in means:
        sampled = sampled_text(task for task in known if task.task in mean.tasks)
        names = {"benchmark": mean.benchmark, "task": "", "task_type": "", "n_shots": "", "sampled": sampled}
        rows += _rows({**base, **names, "decision": decision_text(decisions, [mean.benchmark])}, mean)
    return [{column: row[column] for column in COLUMNS} for row in rows]


def _rows(names: Mapping[str, Any], result: TaskResult | BenchmarkResult) -> list[dict[str, Any]]:
    """A row for each metric. `n` is the number of samples with a value: failed samples do not count."""
    shared = {**names, "total": result.total, "mean_of": mean_of_tasks(result)}
    return [
        {**shared, **vars(one), "failed": failed_samples(result, metric), "metric": metric}
        for metric, one in result.metrics.items()
    ]


def shown_columns(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """The columns of a table for display; model_args and settings where rows differ in them."""
    args = ("model_args",) if any(row["model_args"] for row in rows) else ()
    settings = ("settings",) if len({row["settings"] for row in rows}) > 1 else ()
    return ("model", *args, *settings, *TABLE_COLUMNS[1:])


def listing(rows: list[dict[str, Any]]) -> Listing:
    shown = shown_columns(rows)
    texts = [cells(row, shown) for row in rows]
    return Listing(rows, COLUMNS, shown, texts, NUMBERS, group=("model", "model_args", "settings"))


def cells(row: dict[str, Any], columns: tuple[str, ...]) -> list[str]:
    """A row as text; a benchmark's mean has the benchmark's name, `n` of a limited run shows the total as well."""
    texts = {**row, "task": row["task"] or mean_name(row["benchmark"], row["mean_of"])}
    texts["n"] = str(row["n"]) if row["n"] == row["total"] else f"{row['n']}/{row['total']}"
    values = [texts[column] for column in columns]
    return [number(one) if isinstance(one, float) else "-" if one is None else shown_name(str(one)) for one in values]
