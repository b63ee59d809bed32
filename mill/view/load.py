"""`mill.load("results")`: result folders as data frames, by the same queries as the viewer.

The types of columns do not depend on what the rows have: also an empty frame has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from mill.api.errors import SpecError, UnknownName, import_pandas
from mill.report.collect import COLUMNS, data_frame, score_rows
from mill.score.recorded_run import distinguishing_arguments
from mill.store.sample_row import STATUSES
from mill.view.check_queries import list_checks
from mill.view.compare import PairFilter, compare_summary, list_pairs
from mill.view.index import ResultsIndex, build_search
from mill.view.queries import SampleFilter, all_rows, list_samples, read_names, read_sample
from mill.view.run_info import RunInfo, run_labels

if TYPE_CHECKING:
    import pandas as pd


TEXT, WHOLE, NUMBER, TRUTH, TIME, ANY = "text", "whole", "number", "truth", "time", "any"
Types = Mapping[str, str]

RUN_TYPES: Types = {
    **dict.fromkeys(("run", "uid", "model", "model_args", "backend", "tool"), TEXT),
    **dict.fromkeys(("settings", "tasks"), ANY),
    **dict.fromkeys(("samples", "failed"), WHOLE),
    "started": TIME,
    "seconds": NUMBER,
    **dict.fromkeys(("prompt_tokens", "output_tokens"), WHOLE),
    **dict.fromkeys(("error", "path"), TEXT),
}
SCORE_TYPES: Types = {
    **dict.fromkeys(("run", "model", "model_args", "settings", "benchmark", "task", "task_type", "metric", "path"), TEXT),
    **dict.fromkeys(("mean_of", "sampled", "decision"), TEXT),
    **dict.fromkeys(("n_shots", "n", "failed", "total"), WHOLE),
    **dict.fromkeys(("value", "stderr", "low", "high"), NUMBER),
}
_SAMPLE_TYPES: Types = {
    **dict.fromkeys(("model", "model_id", "settings", "task", "id", "category", "prompt", "target", "response"), TEXT),
    **dict.fromkeys(("error", "status", "finish_reason", "reasoning"), TEXT),
    "seconds": NUMBER,
    **dict.fromkeys(("prompt_tokens", "output_tokens", "reasoning_tokens"), WHOLE),
    "correct": TRUTH,
    "flags": ANY,
}
_OPTIONAL = ("correct",)  # that only some tasks have


def sample_types(rows: Sequence[Mapping[str, Any]]) -> Types:
    """Those of samples, with the metrics of their tasks."""
    metrics = dict.fromkeys(name for row in rows for name in row.get("values") or ())
    present = {name for row in rows for name in row}
    own = {column: NUMBER for name in metrics for column in (f"metric_{name}", name) if column in present}
    known = {name: kind for name, kind in _SAMPLE_TYPES.items() if name not in _OPTIONAL or name in present}
    return {**own, **known}


def typed(frame: pd.DataFrame, types: Types) -> pd.DataFrame:
    """The frame with these columns, first those of the frame itself; a column whose values are of other types, as those of
    a metric that only its task can read, stays as it is."""
    pandas = import_pandas("mill.load")
    for name, kind in types.items():
        column = frame[name] if name in frame else pandas.Series([None] * len(frame), index=frame.index, dtype=object)
        frame[name] = _typed(pandas, column, kind)
    return frame


def _typed(pandas: Any, column: pd.Series[Any], kind: str) -> pd.Series[Any]:
    if kind == TEXT:
        return column.astype(object).where(column.notna(), None).astype(object)
    if kind == TIME:
        return pandas.to_datetime(column, errors="coerce", utc=True).dt.as_unit("us")
    if kind == TRUTH:
        known = column.dropna().isin([True, False]).all()
        return column.astype(object).where(column.notna(), None).astype("boolean") if known else column
    if kind == ANY:
        return column
    numbers = pandas.to_numeric(column, errors="coerce")
    if kind == NUMBER:
        lost = numbers.isna() & column.notna() & (column.astype(str) != "nan")
        return column if lost.any() else numbers.astype("float64")
    return numbers.astype("Int64") if (numbers.dropna() % 1 == 0).all() else numbers.astype("float64")


_OF_SESSIONS = ("seconds", "prompt_tokens", "output_tokens")
_LOST = {"lost": "value", "low": "low", "high": "high"}


class LoadedResults:
    """The runs below a folder, also logs of lm-eval and inspect_ai. `refresh` reads what changed since.

    `runs`, `scores` and `checks` are data frames; `samples(run, task)` has the samples of a run, `compare(a, b)` the pairs
    of two runs, and `significance(a, b)` their tests by category. Runs are named by their labels (the column `run`), by
    their folders below the one that was loaded, or by the start of either, where no other run has it.
    """

    def __init__(self, index: ResultsIndex) -> None:
        self._index = index
        self.refresh()

    def __repr__(self) -> str:
        return f"LoadedResults of {self._index.root}: {len(self._index.runs)} runs, {len(self._index.checks)} checks"

    def refresh(self) -> None:
        self._index.sync()
        runs = list(self._index.runs.values())
        self._labels = run_labels(runs)
        self._arguments = distinguishing_arguments(
            {str(run.path): run.manifest.get("model") or {"name": run.name} for run in runs}
        )

    @property
    def runs(self) -> pd.DataFrame:
        """A row for each run: label, uid (in the addresses of `mill view`), model, backend, settings, tasks, how many
        samples ran and failed, the start of its first session, seconds and tokens of all sessions, folder."""
        return typed(_frame([self._run_row(run) for run in self._index.runs.values()]), RUN_TYPES)

    def _run_row(self, run: RunInfo) -> dict[str, Any]:
        sessions, results = run.manifest.get("sessions", []), run.results.tasks.values()
        return {
            "run": self._labels[run.uid],
            "uid": run.uid,
            "model": run.model,
            "model_args": self._arguments[str(run.path)],
            "backend": run.manifest.get("model", {}).get("backend", ""),
            "tool": run.tool,
            "settings": run.settings,
            "tasks": run.tasks,
            "samples": sum(result.n for result in results),
            "failed": sum(result.failed for result in results),
            "started": min((str(session.get("started", "")) for session in sessions), default=None),
            **{name: sum(session.get(name) or 0 for session in sessions) for name in _OF_SESSIONS},
            "error": run.error,
            "path": str(run.path),
        }

    @property
    def scores(self) -> pd.DataFrame:
        """A row for each metric of each task and benchmark, with the columns of `mill collect`; `run` is the run's label,
        and `path` its folder. `low` and `high` are the 95 % interval, NaN where there is none."""
        rows = [
            {**row, "run": self._labels[run.uid], "model_args": self._arguments[row["run"]], "path": row["run"]}
            for run in self._index.runs.values()
            for row in score_rows(run.model, run.folder, run.results)
        ]
        columns = ["run", *(name for name in COLUMNS if name != "run"), "path"]
        return typed(_frame(rows, columns), SCORE_TYPES)

    @property
    def checks(self) -> pd.DataFrame:
        """A row for each model of each check, with its verdict; newest first."""
        rows = [
            {**{name: check[name] for name in ("uid", "command", "tasks", "created", "baseline")}, **variant}
            for check in list_checks(self._index)
            for variant in check.get("variants", ())
        ]
        return _frame(rows)

    def samples(
        self,
        run: str = "",
        task: str = "",
        *,
        status: str | Sequence[str] = (),
        category: str | None = None,
        search: str = "",
        limit: int | None = None,
    ) -> pd.DataFrame:
        """The samples of a run, or of all runs, as their files have them, a row for each; the filters are those of the
        viewer. Columns that only some tasks have are empty for the others.

        `status` is right, wrong, graded, unscored, failed or pending, or several of them, and a column. Samples that the
        run has not reached are pending: they have no error.
        """
        given = status if isinstance(status, str) else ",".join(status)
        statuses = read_names(given, STATUSES, "status")
        if search:
            build_search(self._index, Event())
        rows: list[dict[str, Any]] = []
        for one in [self._find(run)] if run else self._with_task(task):
            chosen = SampleFilter(one.uid, task, category, statuses, search=search)
            left = None if limit is None else limit - len(rows)
            found = all_rows(lambda page, chosen=chosen: list_samples(self._index, replace(chosen, page=page)), left)  # type: ignore[misc]
            rows += [read_sample(self._index, one.uid, row["task"], row["id"]) for row in found]
        return typed(_frame(rows), sample_types(rows))

    def _with_task(self, task: str) -> list[RunInfo]:
        """The runs that have samples of a task."""
        runs = [run for run in self._index.runs.values() if not run.error and (not task or task in run.tasks)]
        if task and not runs:
            known = {name for run in self._index.runs.values() for name in run.tasks}
            raise UnknownName("task", task, known, hint="the column `tasks` of `.runs` has the names")
        return runs

    def compare(self, a: str, b: str, task: str = "") -> pd.DataFrame:
        """The samples that two runs share: a row for each with both results, and how the answer changed."""
        chosen = PairFilter(self._find(a).uid, self._find(b).uid, task)
        rows = []
        for row in all_rows(lambda page: list_pairs(self._index, replace(chosen, page=page))):
            (value_a, value_b), (status_a, status_b) = row.pop("values"), row.pop("statuses")
            rows.append({**row, "status_a": status_a, "status_b": status_b, "value_a": value_a, "value_b": value_b})
        return _frame(rows)

    def significance(self, a: str, b: str) -> pd.DataFrame:
        """A row for each task and category: accuracy lost with its interval, McNemar's p, and Holm's correction of it."""
        groups = compare_summary(self._index, PairFilter(self._find(a).uid, self._find(b).uid))["groups"]
        rows = [
            {
                **{name: group[name] for name in ("task", "category", "n", "changed")},
                **group["cells"],
                **{name: (group["lost"] or {}).get(key) for name, key in _LOST.items()},
                "p": group["p"],
                "p_corrected": group["p_corrected"],
            }
            for group in groups
        ]
        return _frame(rows)

    def _find(self, name: str) -> RunInfo:
        runs = self._index.runs.values()
        for matches in (
            [run for run in runs if name in (run.uid, run.name, self._labels[run.uid])],
            [run for run in runs if run.name.startswith(name) or self._labels[run.uid].startswith(name)],
        ):
            if len(matches) == 1:
                return matches[0]
            if matches:
                found = ", ".join(self._labels[run.uid] for run in matches[:5])
                raise SpecError(f"{len(matches)} runs are called {name!r}: {found}")
        raise UnknownName("run", name, self._labels.values(), hint="the column `run` of `.runs` has the names")


def load(folder: str | Path) -> LoadedResults:
    """The runs and checks below a folder, indexed as for `mill view`."""
    import_pandas("mill.load")
    return LoadedResults(ResultsIndex(Path(folder)))


_frame = partial(data_frame, "mill.load")
