"""Two runs sample by sample: which answers changed, which became right or wrong, and whether that is noise.

The pairs of two runs are made once and stored in the index, so that filters and sorting read a narrow table.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mill.api.errors import RunError, SpecError, UnknownName
from mill.checks.measurements import NEAR_TIE
from mill.checks.result import Variant
from mill.checks.score_difference import RATIOS
from mill.checks.verdict import verdict
from mill.metrics.differences import (
    LOWER,
    Difference,
    Value,
    direction,
    negated,
    paired_loss,
    perplexity_difference,
    value_of_failures,
    valued_pairs,
)
from mill.metrics.estimate import Estimate, mean_of
from mill.metrics.paired import holm, mcnemar, rate_difference
from mill.report.tables import number
from mill.store.sample_row import FAILED, PENDING, STATUSES
from mill.view.database import TOKENS, value_column
from mill.view.index import ResultsIndex
from mill.view.queries import (
    Clause,
    Page,
    category_names,
    cursor_of,
    excerpt,
    files_of,
    find_run,
    order_clause,
    read_line,
    read_names,
    read_page,
    search_query,
)
from mill.view.tokens import divergence_of

CELLS = BOTH_RIGHT, REGRESSION, IMPROVEMENT, BOTH_WRONG, OTHER = (
    "both_right", "regression", "improvement", "both_wrong", "other",
)  # fmt: skip
FLIPS = (REGRESSION, IMPROVEMENT)
MOST_MARGINS = 1_000  # changed texts whose divergence is looked up when two runs are first compared
SORTS = {
    "order": "pairs.id",
    "category": "pairs.category",
    "cell": "pairs.cell",
    "margin": "pairs.margin",
    "difference": "pairs.difference",
}
JOINED = "pairs JOIN samples x ON x.id = pairs.a JOIN samples y ON y.id = pairs.b"
SIGNIFICANT = 0.05
_PENDING, _FAILED = STATUSES.index(PENDING), STATUSES.index(FAILED)
_PAIR = f"""
    INSERT INTO pairs (
        comparison, file, a, b, category, changed, flipped, other_prompt, margin, value_a, value_b, ratio_a, ratio_b
    )
    SELECT ?, x.file, x.id, y.id, x.category,
        x.answer_key != y.answer_key, x.extracted_key != y.extracted_key, x.prompt_key != y.prompt_key,
        x.margin, {{a}}, {{b}}, {{ratio_a}}, {{ratio_b}}
    FROM samples x CROSS JOIN samples y INDEXED BY samples_by_key ON y.file = ? AND y.key = x.key
    WHERE x.id BETWEEN ? AND ? AND +x.file = ? AND x.status != {_PENDING} AND y.status != {_PENDING}
"""
_IS_RIGHT = f"CASE WHEN (SELECT status FROM samples WHERE id = {{0}}) = {_FAILED} THEN 0 ELSE value_{{0}} END"
_SET_CELLS = f"""
    UPDATE pairs SET cell = CASE ({_IS_RIGHT.format("a")}) * 2 + ({_IS_RIGHT.format("b")})
        WHEN 3 THEN 0 WHEN 2 THEN 1 WHEN 1 THEN 2 WHEN 0 THEN 3 ELSE 4 END
    WHERE comparison = ? AND file = ?
"""
_KNOWN = """
    SELECT file, count(*) AS n, count(coalesce(value_a, ratio_a)) AS a, count(coalesce(value_b, ratio_b)) AS b,
        coalesce(max(coalesce(value_a, 0) NOT IN (0, 1) OR coalesce(value_b, 0) NOT IN (0, 1)
            OR ratio_a IS NOT NULL OR ratio_b IS NOT NULL), 0) AS graded
    FROM pairs WHERE comparison = ? GROUP BY file
"""
_COUNTS = f"""
    file, category, cell, count(*) AS n, sum(changed) AS changed, sum(flipped) AS flipped,
    sum(other_prompt) AS other_prompt, sum(changed AND margin IS NULL) AS no_margin,
    coalesce(sum(margin < {NEAR_TIE}), 0) AS near
"""
_LISTED = (
    "pairs.id, pairs.file, pairs.a, pairs.b, pairs.category, cell, changed, other_prompt, pairs.margin, difference, "
    "flipped, value_a, value_b, x.name, x.status AS status_a, y.status AS status_b, "
    "x.file AS file_a, x.offset AS offset_a, x.length AS length_a, "
    "y.file AS file_b, y.offset AS offset_b, y.length AS length_b"
)


@dataclass(frozen=True)
class PairFilter:
    """Which pairs are shown. `least_margin` hides answers at a near-tie; pairs whose margin is not known stay."""

    a: str
    b: str
    task: str = ""
    category: str | None = None
    cells: tuple[str, ...] = ()
    changed: bool = False
    metric: str = ""
    """Empty for the first one of each task."""
    least_margin: float = 0.0
    search: str = ""
    page: Page = field(default_factory=Page)


def read_pair_filter(given: Mapping[str, str]) -> PairFilter:
    try:
        margin = float(given.get("margin") or 0.0)
    except ValueError:
        margin = math.nan
    if not 0 <= margin < math.inf:
        raise SpecError(f"margin={given['margin'][:20]}: a number of nats is needed, such as 0.1")
    return PairFilter(
        given.get("a", ""),
        given.get("b", ""),
        given.get("task", ""),
        given.get("category"),
        read_names(given.get("cell", ""), CELLS, "cell"),
        given.get("changed") == "1",
        given.get("metric", ""),
        margin,
        given.get("q", "").strip(),
        read_page(given, SORTS),
    )


# --- The pairs


@dataclass(frozen=True)
class _SharedTask:
    """A task that both runs have: its files, and the metric by which it is compared with its position in each file. The name
    is empty, and the positions None, where the runs share no metric: then only the answers are compared."""

    files: tuple[Any, Any]
    metric: str
    at: tuple[int | None, int | None]
    shared: list[str]

    @classmethod
    def of(cls, first: Any, second: Any, metric: str) -> _SharedTask | None:
        """None where they do not share the metric. A run in which every sample failed has no metrics of its own."""
        names = [json.loads(file["metrics"] or "[]") for file in (first, second)]
        shared = [name for name in names[0] if name in names[1]] if all(names) else names[0] or names[1]
        if metric and metric not in shared:
            return None
        chosen = metric or next(iter(shared), "")
        at = [side.index(chosen) if chosen in side else None for side in names]
        return cls((first, second), chosen, (at[0], at[1]), shared)


def _shared_tasks(index: ResultsIndex, a: str, b: str, metric: str) -> list[_SharedTask]:
    if find_run(index, a).uid == find_run(index, b).uid:
        raise SpecError("a run is not compared with itself: choose another one")
    sides = [{row["task"]: row for row in files_of(index, uid).values()} for uid in (a, b)]
    both = [name for name in sides[0] if name in sides[1]]
    found = [task for name in both if (task := _SharedTask.of(sides[0][name], sides[1][name], metric)) is not None]
    if both and not found:
        raise RunError(f"no task that both runs have is scored by {metric[:60]}")
    if not found:
        names = [", ".join(list(side)[:5]) or "none" for side in sides]
        raise RunError(f"the two runs have no task in common: one has {names[0]}, the other {names[1]}")
    return found


def comparison(index: ResultsIndex, a: str, b: str, metric: str = "") -> Any:
    """The stored comparison of two runs by a metric, made where there is none or a run has changed since. Without a metric
    each task is compared by the first one that both runs have; samples without an answer yet are not compared."""
    tasks = _shared_tasks(index, a, b, metric)
    used = json.dumps([[file["id"], file["last"]] for task in tasks for file in task.files])
    stored = _stored(index, a, b, metric)
    if stored is not None and stored["files"] == used:
        return stored
    with index.database.change() as change:
        stored = _stored(index, a, b, metric)
        if stored is not None and stored["files"] == used:  # another thread has just made it
            return stored
        if stored is not None:  # of an earlier state of the runs
            change.execute("DELETE FROM pairs WHERE comparison = ?", (stored["id"],))
            change.execute("DELETE FROM comparisons WHERE id = ?", (stored["id"],))
        insert = "INSERT INTO comparisons (a, b, metric, files) VALUES (?, ?, ?, ?)"
        number_of = change.execute(insert, (a, b, metric, used)).lastrowid
        answered = 0
        for task in tasks:
            statuses = [json.loads(file["statuses"]) for file in task.files]
            answered += sum(count for one in statuses for name, count in one.items() if name != PENDING)
            _insert_pairs(change, number_of, task)
        _set_cells(change, number_of, {task.files[0]["id"] for task in tasks if direction(task.metric) != LOWER})
        count = "SELECT count(*), coalesce(min(id), 0), coalesce(max(id), 0) FROM pairs WHERE comparison = ?"
        pairs, start, end = change.execute(count, (number_of,)).fetchone()
        update = "UPDATE comparisons SET unpaired = ?, first = ?, last = ? WHERE id = ?"
        change.execute(update, (answered - 2 * pairs, start, end, number_of))
        _look_up_margins(index, change, number_of)
    return _stored(index, a, b, metric)


def _stored(index: ResultsIndex, a: str, b: str, metric: str) -> Any:
    query = "SELECT * FROM comparisons WHERE a = ? AND b = ? AND metric = ?"
    return index.database.connection().execute(query, (a, b, metric)).fetchone()


def _insert_pairs(change: Any, number_of: Any, task: _SharedTask) -> None:
    names = {}
    for side, table, at in zip("ab", "xy", task.at, strict=True):
        for name, column in ((side, "numbers"), (f"ratio_{side}", "ratios")):
            names[name] = "NULL" if at is None else value_column(at, f"{table}.{column}")
    first, second = task.files
    change.execute(_PAIR.format(**names), (number_of, second["id"], first["first"], first["last"], first["id"]))


def _set_cells(change: Any, number_of: Any, files: Collection[int]) -> None:
    """Samples of these files are right or wrong where the values of all pairs are 0 or 1, and a failed one is wrong. Graded
    tasks are compared by their means: samples that happen to be 0 or 1 are a selection. Where a run has no value at all,
    none of its samples is right or wrong."""
    change.execute("UPDATE pairs SET cell = 4, difference = value_b - value_a WHERE comparison = ?", (number_of,))
    for row in change.execute(_KNOWN, (number_of,)).fetchall():
        if row["file"] in files and row["a"] and row["b"] and not row["graded"]:
            change.execute(_SET_CELLS, (number_of, row["file"]))


def _look_up_margins(index: ResultsIndex, change: Any, number_of: Any) -> None:
    """The margins of generated texts that changed, flips first: they are in the samples, not in the index."""
    query = (
        f"SELECT pairs.id, x.file AS file_a, x.offset AS offset_a, x.length AS length_a, x.name AS name_a, "
        f"y.file AS file_b, y.offset AS offset_b, y.length AS length_b, y.name AS name_b FROM {JOINED} "
        f"WHERE comparison = ? AND changed AND pairs.margin IS NULL AND x.flags & {TOKENS} AND y.flags & {TOKENS} "
        "ORDER BY cell IN (1, 2) DESC LIMIT ?"
    )
    found = []
    for row in change.execute(query, (number_of, MOST_MARGINS)).fetchall():
        sides = [{name: row[f"{name}_{side}"] for name in ("file", "offset", "length", "name")} for side in "ab"]
        divergence = divergence_of(*(read_line(index, side) for side in sides))
        if divergence is not None and divergence.margin is not None:
            found.append((divergence.margin, row["id"]))
    change.executemany("UPDATE pairs SET margin = ? WHERE id = ?", found)


# --- The summary


@dataclass(frozen=True)
class _Grading:
    """How graded values of a task are compared: `of` is the perplexity or the bits per unit of documents, None for means."""

    metric: str
    of: Callable[..., Estimate] | None = None

    @property
    def is_score(self) -> bool:
        """Whether it counts in the mean score of several tasks."""
        return self.of is None and direction(self.metric) != LOWER

    def compare(self, pairs: Sequence[Any]) -> tuple[Estimate, Estimate, Difference]:
        """The value of each run, and the loss: for a metric of which less is better, by how much it rose."""
        first, second = zip(*pairs, strict=True)
        if self.of is not None:
            return (
                self.of([[one] for one in first]),
                self.of([[one] for one in second]),
                perplexity_difference(pairs, self.of),
            )
        loss = paired_loss(pairs)
        return mean_of(first), mean_of(second), negated(loss) if direction(self.metric) == LOWER else loss


@dataclass
class _Graded:
    """The graded pairs of the tasks of a comparison, by file and category, and what cannot be compared."""

    pairs: dict[tuple[int, int], list[Any]] = field(default_factory=dict)
    how: dict[int, _Grading] = field(default_factory=dict)
    inconclusive: list[str] = field(default_factory=list)

    def shared(self) -> tuple[_Grading, list[Any]] | None:
        """The pairs of all tasks together: by one metric, else by the mean of those that are scores."""
        kinds = list(dict.fromkeys(self.how.values()))
        files = [file for file, how in self.how.items() if len(kinds) == 1 or how.is_score]
        pairs = [pair for (file, _), some in self.pairs.items() if file in files for pair in some]
        return (self.how[files[0]], pairs) if pairs else None


def compare_summary(index: ResultsIndex, chosen: PairFilter) -> dict[str, Any]:
    """The 2×2 of right and wrong with McNemar's test, in all and for each category, corrected by Holm's method. `above` are
    the pairs of each cell that the near-tie slider leaves in the list: tests without those would be over a selection."""
    stored = comparison(index, chosen.a, chosen.b, chosen.metric)
    everything = replace(chosen, cells=(), changed=False, search="", page=Page(), least_margin=0.0)
    known = index.once((stored["id"], everything), lambda: _summary(index, everything, stored))
    rows = _counted(index, replace(everything, least_margin=chosen.least_margin), stored)
    return {**known, "above": _cells(rows)}


def _counted(index: ResultsIndex, chosen: PairFilter, stored: Any) -> list[Any]:
    """A row for each category and cell."""
    clause = _where(index, chosen, stored)
    query = f"SELECT {_COUNTS} FROM pairs WHERE {clause.text} GROUP BY file, category, cell"
    return index.database.connection().execute(query, clause.parameters).fetchall()


def _summary(index: ResultsIndex, everything: PairFilter, stored: Any) -> dict[str, Any]:
    rows = _counted(index, everything, stored)
    files = files_of(index, everything.a)
    names = category_names(index, {row["category"] for row in rows})
    groups: dict[tuple[int, int], list[Any]] = {}
    for row in rows:
        groups.setdefault((row["file"], row["category"]), []).append(row)
    tasks = _shared_tasks(index, everything.a, everything.b, everything.metric)
    present = {row["file"] for row in rows}
    graded = _graded_pairs(index, everything, stored, [one for one in tasks if one.files[0]["id"] in present])
    listed = []
    for (file, category), found in groups.items():
        pairs = graded.pairs.get((file, category))
        counts = _counts(found, (graded.how[file], pairs) if pairs else None)
        listed.append({"task": files[file]["task"], "category": names[category], **counts})
    corrected = holm([math.nan if entry["p"] is None else entry["p"] for entry in listed])
    for entry, p in zip(listed, corrected, strict=True):
        entry["p_corrected"] = None if math.isnan(p) else p
    shared = graded.shared()
    counts = _counts(rows, shared)
    compared = list(dict.fromkeys(entry["task"] for entry in listed))
    sentences = [*_verdict(counts, everything.b, shared), *graded.inconclusive, *_near_ties(rows)]
    metrics = dict.fromkeys(name for task in tasks if task.files[0]["task"] in compared for name in task.shared)
    return {**counts, "metrics": list(metrics), "unpaired": stored["unpaired"], "groups": listed, "sentences": sentences}


def _graded_pairs(index: ResultsIndex, everything: PairFilter, stored: Any, tasks: Sequence[_SharedTask]) -> _Graded:
    """The pairs with a value that are neither right nor wrong, where failures count as in the whole task. A failed sample
    counts as wrong beside others that have a value; a run that has none at all shows nothing."""
    found = _Graded()
    known = {row["file"]: row for row in index.database.connection().execute(_KNOWN, (stored["id"],))}
    for task in tasks:
        file, name = task.files[0]["id"], task.files[0]["task"]
        counts = known[file]
        if task.metric and not (counts["a"] and counts["b"]):
            whose = "the baseline has no" if counts["b"] else "the other run has no" if counts["a"] else "the runs have no"
            found.inconclusive.append(f"{name}: {whose} value of {task.metric}, so that the comparison is inconclusive.")
        elif counts["graded"] or direction(task.metric) == LOWER:
            values = _values(index, replace(everything, task=name), stored)
            worst = value_of_failures([pair for pairs in values.values() for pair in pairs], direction(task.metric))
            how = _grading(index, everything.a, task) if isinstance(worst, tuple) else _Grading(task.metric)
            if how is not None:
                found.how[file] = how
                pairs = {(file, category): valued_pairs(some, worst) for category, some in values.items()}
                found.pairs |= {key: some for key, some in pairs.items() if some}
    return found


def _values(index: ResultsIndex, chosen: PairFilter, stored: Any) -> dict[int, list[tuple[Value, Value]]]:
    """The values of the pairs of one task by category."""
    clause = _where(index, chosen, stored)
    query = (
        "SELECT pairs.category, value_a, value_b, ratio_a, ratio_b, x.status AS status_a, y.status AS status_b "
        f"FROM {JOINED} WHERE {clause.text}"
    )
    found: dict[int, list[tuple[Value, Value]]] = {}
    for row in index.database.connection().execute(query, clause.parameters):
        sides: list[Value] = [
            "failed" if row[f"status_{side}"] == _FAILED else _ratio(row[f"ratio_{side}"]) or row[f"value_{side}"]
            for side in "ab"
        ]
        found.setdefault(row["category"], []).append((sides[0], sides[1]))
    return found


def _ratio(text: str | None) -> tuple[float, float] | None:
    """A log-likelihood and its number of units, from JSON."""
    if text is None:
        return None
    score, units = map(float, json.loads(text))
    return score, units


def _grading(index: ResultsIndex, run: str, task: _SharedTask) -> _Grading | None:
    """Of documents; None where the recorded score is neither their perplexity nor their bits per unit."""
    name, at = task.files[0]["task"], task.at[0]
    result = find_run(index, run).results.tasks.get(name)
    recorded = result.metrics.get(task.metric) if result is not None else None
    query = f"SELECT {value_column(at or 0, 'ratios')} FROM samples WHERE file = ?"
    rows = index.database.connection().execute(query, (task.files[0]["id"],))
    documents = [[ratio] for row in rows if (ratio := _ratio(row[0])) is not None]
    for of in RATIOS.values():
        if recorded is not None and math.isclose(of(documents).value, recorded.value, rel_tol=1e-6):
            return _Grading(task.metric, of)
    return None


def _verdict(counts: Mapping[str, Any], label: str, graded: tuple[_Grading, Sequence[Any]] | None) -> list[str]:
    """What a check would report of these pairs."""
    cells = counts["cells"]
    n, worse, better = sum(cells.values()) - cells[OTHER], cells[REGRESSION], cells[IMPROVEMENT]
    by_metric = [] if graded is None or graded[0].is_score else [_metric_sentence(graded[0].metric, counts)]
    if not n and (graded is None or by_metric):
        return by_metric
    variant = Variant(label, counts={"samples": counts["n"], "regressions": worse, "improvements": better})
    if n:
        variant.metrics["acc_drop"] = rate_difference(worse, better, n)
        variant.p_values["acc_drop"] = mcnemar(worse, better)
    if graded is not None and not by_metric:
        for name, estimate in zip(("score_baseline", "score", "score_drop"), counts["scores"], strict=True):
            variant.metrics[name] = Estimate(**estimate)
        variant.p_values["score_drop"] = math.nan if counts["score_p"] is None else counts["score_p"]
    return [verdict(variant), *by_metric] if variant.metrics else by_metric


def _metric_sentence(metric: str, counts: Mapping[str, Any]) -> str:
    """Of a metric of which less is better."""
    first, second, loss = (Estimate(**one) for one in counts["scores"])
    if math.isnan(loss.value):
        return f"{metric} cannot be compared: a sample failed, and its value is unknown."
    from_to = f"from {number(first.value)} to {number(second.value)}"
    rise = number(loss.value) + ("" if loss.low is None else f", {number(loss.low)} to {number(loss.high)}")
    p = counts["score_p"]
    if p is None or p >= SIGNIFICANT or not loss.value:
        return f"No change of {metric} detected: {from_to} (a rise of {rise})."
    return f"{metric} {'rose' if loss.value > 0 else 'fell'} {from_to} (a rise of {rise}, p = {p:.2g}): not noise."


def _near_ties(rows: Sequence[Any]) -> list[str]:
    """How many answers that became right or wrong were decided by a small margin."""
    flips = [row for row in rows if CELLS[row["cell"]] in FLIPS]
    total, known = sum(row["n"] for row in flips), sum(row["n"] - row["no_margin"] for row in flips)
    if not known:
        return []
    near = sum(row["near"] for row in flips)
    of = f"{total}" if known == total else f"{known} (of {total}) with a known margin"
    return [
        f"Of the answers that became right or wrong, {near} of {of} were at a near-tie: rounding alone may explain these."
    ]


def _cells(rows: Sequence[Any]) -> dict[str, int]:
    return {name: sum(row["n"] for row in rows if row["cell"] == at) for at, name in enumerate(CELLS)}


def _counts(rows: Sequence[Any], graded: tuple[_Grading, Sequence[Any]] | None) -> dict[str, Any]:
    """Right and wrong answers, and the scores of samples that are graded: of both runs, and what was lost. The test of a
    group is that of the first."""
    cells = _cells(rows)
    n, worse, better = sum(cells.values()) - cells[OTHER], cells[REGRESSION], cells[IMPROVEMENT]
    found = {
        "n": sum(cells.values()),
        "cells": cells,
        "accuracy": [(cells[BOTH_RIGHT] + cells[name]) / n for name in FLIPS] if n else None,
        "lost": vars(rate_difference(worse, better, n)) if n else None,
        "p": mcnemar(worse, better) if n else None,
        "scores": None,
        **{name: sum(row[name] for row in rows) for name in ("changed", "flipped", "other_prompt", "no_margin")},
    }
    if graded is not None:
        how, pairs = graded
        first, second, loss = how.compare(pairs)
        found["scores"] = [vars(estimate) for estimate in (first, second, loss.estimate)]
        found["score_p"] = None if math.isnan(loss.p) else loss.p
        found["score_name"] = "Mean score" if how.is_score else how.metric
        found["p"] = found["score_p"] if found["p"] is None else found["p"]
    return found


def list_pairs(index: ResultsIndex, chosen: PairFilter) -> dict[str, Any]:
    """A page of pairs, how many there are, and the cursor of the next page."""
    stored = comparison(index, chosen.a, chosen.b, chosen.metric)
    rows, files = _rows(index, chosen, stored), files_of(index, chosen.a)
    clause = _where(index, chosen, stored)
    query = f"SELECT count(*) FROM pairs WHERE {clause.text}"
    total = index.database.connection().execute(query, clause.parameters).fetchone()[0]
    names = category_names(index, {row["category"] for row in rows})
    page, column = rows[: chosen.page.limit], SORTS[chosen.page.sort].partition(".")[2]
    return {
        "total": total,
        "rows": [_listed(index, row, files, names) for row in page],
        "next": cursor_of(page[-1][column], page[-1]["id"]) if len(rows) > len(page) else None,
    }


def _listed(index: ResultsIndex, row: Any, files: Mapping[int, Any], names: Mapping[int, str]) -> dict[str, Any]:
    sides = [{name: row[f"{name}_{side}"] for name in ("file", "offset", "length")} for side in "ab"]
    return {
        "task": files[row["file"]]["task"],
        "id": row["name"],
        "category": names[row["category"]],
        "cell": CELLS[row["cell"]],
        "changed": bool(row["changed"]),
        "flipped": bool(row["flipped"]),
        "other_prompt": bool(row["other_prompt"]),
        "margin": row["margin"],
        "statuses": [STATUSES[row["status_a"]], STATUSES[row["status_b"]]],
        "values": [row["value_a"], row["value_b"]],
        "responses": [excerpt(index, side)["response"] for side in sides],
    }


def _rows(index: ResultsIndex, chosen: PairFilter, stored: Any) -> list[Any]:
    """The narrow table is sorted first; only the rows of the page are joined with their samples."""
    clause = _where(index, chosen, stored)
    order = order_clause(clause, SORTS[chosen.page.sort], "pairs.id", chosen.page)
    inner = f"SELECT id FROM pairs WHERE {clause.text} ORDER BY {order} LIMIT ?"
    query = f"SELECT {_LISTED} FROM {JOINED} WHERE pairs.id IN ({inner}) ORDER BY {order}"
    return index.database.connection().execute(query, (*clause.parameters, chosen.page.limit + 1)).fetchall()


def _where(index: ResultsIndex, chosen: PairFilter, stored: Any) -> Clause:
    """Pairs of one comparison have adjacent numbers."""
    clause = Clause()
    clause.add("pairs.id BETWEEN ? AND ?", stored["first"], stored["last"])
    if chosen.task:
        clause.add("pairs.file = ?", *files_of(index, chosen.a, chosen.task))
    if chosen.category is not None:
        clause.add("pairs.category = (SELECT id FROM names WHERE text = ?)", chosen.category)
    if chosen.cells:
        clause.add(f"cell IN ({', '.join('?' * len(chosen.cells))})", *map(CELLS.index, chosen.cells))
    if chosen.changed:
        clause.add("changed")
    if chosen.least_margin > 0:
        clause.add("(pairs.margin IS NULL OR pairs.margin >= ?)", chosen.least_margin)
    if query := search_query(chosen.search):
        matching = "SELECT rowid FROM texts WHERE texts MATCH ?"
        clause.add(f"(pairs.a IN ({matching}) OR pairs.b IN ({matching}))", query, query)
    return clause


def find_pair(index: ResultsIndex, chosen: PairFilter, task: str, name: str) -> tuple[Any, Any, Any]:
    """The pair of a sample of the first run, and the rows of both samples."""
    stored = comparison(index, chosen.a, chosen.b, chosen.metric)
    connection = index.database.connection()
    (file,) = files_of(index, chosen.a, task)
    first = connection.execute("SELECT * FROM samples WHERE file = ? AND name = ?", (file, name)).fetchone()
    query = "SELECT * FROM pairs WHERE comparison = ? AND a = ?"
    pair = connection.execute(query, (stored["id"], first["id"])).fetchone() if first is not None else None
    if pair is None:
        raise UnknownName("sample", name[:80], (), hint=f"the two runs share none of {task} with this id")
    return pair, first, connection.execute("SELECT * FROM samples WHERE id = ?", (pair["b"],)).fetchone()


def pair_neighbours(index: ResultsIndex, chosen: PairFilter, pair: Any) -> dict[str, Any]:
    """The pairs before and after one in the order of the list, and the next one whose answer flipped."""
    stored = comparison(index, chosen.a, chosen.b, chosen.metric)
    column = SORTS[chosen.page.sort].partition(".")[2]
    page = replace(chosen.page, after=(pair[column], pair["id"]), limit=1)
    files = files_of(index, chosen.a)

    def nearest(one: PairFilter) -> dict[str, str] | None:
        rows = _rows(index, one, stored)[:1]
        return {"task": files[rows[0]["file"]]["task"], "id": rows[0]["name"]} if rows else None

    flipped = replace(chosen, cells=FLIPS, page=page)
    return {
        "previous": nearest(replace(chosen, page=replace(page, backwards=True))),
        "next": nearest(replace(chosen, page=page)),
        "next_flip": nearest(flipped) or nearest(replace(flipped, page=replace(page, after=None))),  # from the start again
    }
