"""Scores as a pivot: a column for each model, task or setting; the best scores in bold, with all that are not significantly
worse."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mill.api.errors import UnknownName
from mill.checks.score_difference import PairedRuns, ValueCache
from mill.metrics.differences import direction, unpaired_difference
from mill.metrics.estimate import Estimate
from mill.metrics.paired import holm
from mill.report.collect import mean_name, run_rows
from mill.report.tables import Listing, dash, number, shown_name
from mill.score.recorded_run import RecordedRun

INDEX = ("model", "settings", "benchmark", "task", "n_shots", "metric")
"""The columns that name a score; each may become the columns of a pivot."""
COMPARED = ("model", "settings", "n_shots")  # scores that differ in these alone can be compared
STDERR, INTERVAL, NONE = "stderr", "interval", "none"
UNCERTAINTIES = (STDERR, INTERVAL, NONE)
LEVEL = 0.05
DATA = ("stderr", "low", "high", "n", "best")
NOTE = (
    "Marked: the best score, and every one that is not significantly worse (two-sided at 5 %, corrected by Holm's method; "
    "paired where the runs have the same samples, or one has a random sample of them, else the z-test). "
    "Nothing is marked where the better direction is unknown."
)

Key = tuple[str, ...]


@dataclass(frozen=True)
class Score:
    """A score with its names in the order of `INDEX`, and the run it is of."""

    names: Mapping[str, str]
    result: str
    """The task, or the benchmark whose mean this is."""
    estimate: Estimate
    run: RecordedRun

    def key(self, columns: Iterable[str]) -> Key:
        return tuple(self.names[column] for column in columns)


@dataclass
class Pivot:
    """Cells by the names of their row and column; `best` are those in bold."""

    keys: Sequence[str]
    rows: dict[Key, None] = field(default_factory=dict)
    columns: dict[Key, None] = field(default_factory=dict)
    cells: dict[tuple[Key, Key], Score] = field(default_factory=dict)
    best: set[tuple[Key, Key]] = field(default_factory=set)
    marked: bool = False
    """Whether there are scores that can be compared."""


def read_columns(text: str) -> tuple[str, ...]:
    """The columns of a pivot, by commas."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in INDEX:
            raise UnknownName("column", name, INDEX, hint=f"--columns takes {', '.join(INDEX)}")
    return names


def scores_of(runs: Sequence[RecordedRun], rows: Iterable[Mapping[str, Any]] | None = None) -> list[Score]:
    """The scores of runs, or of the chosen rows of `mill collect` alone."""
    by_path = {str(run.path): run for run in runs}
    found = []
    for row in run_rows(runs) if rows is None else rows:
        run = by_path[row["run"]]
        names = {
            "model": run.label,
            "settings": run.settings,
            "benchmark": row["benchmark"],
            "task": row["task"] or mean_name(row["benchmark"], row["mean_of"]),
            "n_shots": str(row["n_shots"]),
            "metric": row["metric"],
        }
        estimate = Estimate(row["value"], row["stderr"], row["low"], row["high"], row["n"])
        found.append(Score(names, row["task"] or row["benchmark"], estimate, run))
    return found


def pivot(scores: Sequence[Score], columns: Sequence[str]) -> Pivot:
    """By benchmark, tasks inside of a benchmark are left out: their mean is the column. Names in which no two scores differ
    are not shown, but for those of the task and metric."""
    if "benchmark" in columns and "task" not in columns:
        scores = [score for score in scores if score.result == score.names["benchmark"]]
    hidden = {"benchmark"} if "benchmark" not in columns else {"task"}
    others = [name for name in INDEX if name not in (*columns, *hidden)]
    varied = [name for name in others if name in ("task", "metric") or len({score.names[name] for score in scores}) > 1]
    shots = {(score.result, score.names["n_shots"]) for score in scores}
    once = len(shots) == len({score.result for score in scores})  # whether no task was run with two
    if "n_shots" in varied and {"task", "benchmark"} & set(columns) and once:
        varied.remove("n_shots")  # a column has its own
    table = Pivot(varied)
    for score in scores:
        row, column = score.key(varied), score.key(columns)
        table.rows[row] = table.columns[column] = None
        table.cells[row, column] = score
    if tuple(columns) == ("n_shots",):
        table.columns = dict.fromkeys(sorted(table.columns, key=lambda key: int(key[0] or -1)))
    _mark(table, columns)
    return table


def _mark(table: Pivot, columns: Sequence[str]) -> None:
    """Mark the best of each group of scores that can be compared: those of one task and metric, in different columns where
    these are models or settings, else in different rows of one column."""
    compared = [name for name in columns if name in COMPARED] or ["model"]
    fixed = [name for name in INDEX if name not in compared and name != "benchmark"]
    groups: dict[Key, list[tuple[Key, Key]]] = {}
    for cell, score in table.cells.items():
        groups.setdefault(score.key(fixed), []).append(cell)
    cache = ValueCache()
    for group in groups.values():
        scores = [table.cells[cell] for cell in group]
        if len(group) > 1 and direction(scores[0].names["metric"]):
            table.marked = True
            table.best |= {cell for cell, good in zip(group, not_worse(scores, cache), strict=True) if good}


def not_worse(scores: Sequence[Score], cache: ValueCache) -> list[bool]:
    """Whether each of these scores of one task and metric is the best, or not significantly worse than it."""
    sign = direction(scores[0].names["metric"])
    known = [score for score in scores if not math.isnan(score.estimate.value)]
    if not known:
        return [False] * len(scores)
    best = max(known, key=lambda score: sign * score.estimate.value)
    others = [score for score in known if score is not best]
    corrected = holm([_p_value(best, score, cache) for score in others])
    worse = {id(score) for score, p in zip(others, corrected, strict=True) if p < LEVEL}
    return [not math.isnan(score.estimate.value) and id(score) not in worse for score in scores]


def _p_value(best: Score, other: Score, cache: ValueCache) -> float:
    """1 where nothing can be tested, such as a score of one sample, and where the other is better over the samples that both
    have. Samples that one run lacks are left out only where they were left out at random."""
    if best.run is other.run:
        return 1.0
    name, metric = best.result, best.names["metric"]
    pair = PairedRuns(best.run, other.run, cache)
    random = best.run.is_random_sample(name) or other.run.is_random_sample(name)
    found = pair.difference(name, metric, same_samples=not random)
    difference = unpaired_difference(best.estimate, other.estimate) if found is None else found.difference
    better = found is not None and found.pairs and direction(metric) * difference.estimate.value > 0
    return 1.0 if better or math.isnan(difference.p) else difference.p


def pivot_listing(table: Pivot, columns: Sequence[str], uncertainty: str = STDERR) -> Listing:
    """In CSV, JSON and Parquet, each column is followed by its standard error, interval, n and whether it is in bold."""
    heads = _unique([", ".join(key) for key in table.columns], table.keys)
    data, cells, bold = [], [], set()
    for number_of_row, row in enumerate(table.rows):
        entry: dict[str, Any] = dict(zip(table.keys, row, strict=True))
        if entry.get("n_shots", "").isdecimal():
            entry["n_shots"] = int(entry["n_shots"])
        line = list(map(shown_name, row))
        for index, (column, head) in enumerate(zip(table.columns, heads, strict=True), len(table.keys)):
            score = table.cells.get((row, column))
            entry |= _data(head, score, (row, column) in table.best)
            line.append("" if score is None else cell_text(score.estimate, uncertainty))
            bold |= {(number_of_row, index)} if (row, column) in table.best else set()
        data.append(entry)
        cells.append(line)
    names = [name for head in heads for name in (head, *(f"{head} {suffix}" for suffix in DATA))]
    names_shown = list(map(shown_name, heads))
    return Listing(
        data,
        [*table.keys, *names],
        [*table.keys, *names_shown],
        cells,
        numbers=("n_shots", *names_shown),
        repeated=len(table.keys),
        bold=bold,
        notes=[NOTE] if table.marked else [],
    )


def _data(head: str, score: Score | None, best: bool) -> dict[str, Any]:
    columns = {} if score is None else {**vars(score.estimate), "best": best}
    return {head: columns.get("value"), **{f"{head} {suffix}": columns.get(suffix) for suffix in DATA}}


def _unique(heads: Sequence[str], taken: Sequence[str]) -> list[str]:
    """Names of columns that are different with what is added to them, also where a model is called `a stderr`."""
    found: list[str] = []
    used = set(taken)
    for head in heads:
        name = head
        while used & {name, *(f"{name} {suffix}" for suffix in DATA)}:
            name += "'"
        used |= {name, *(f"{name} {suffix}" for suffix in DATA)}
        found.append(name)
    return found


def cell_text(estimate: Estimate, uncertainty: str) -> str:
    """A value with its standard error or its interval, where it has one."""
    value = number(estimate.value)
    if uncertainty == STDERR and estimate.stderr is not None:
        return f"{value} {'±' if dash() == '–' else '+-'} {number(estimate.stderr)}"
    if uncertainty == INTERVAL and estimate.low is not None and estimate.high is not None:
        return f"{value} ({number(estimate.low, 3)}{dash()}{number(estimate.high, 3)})"
    return value
