"""Pairs of samples that two runs share, made once for two runs and stored in the index.

Filters and sorting then read a narrow table, and the counts of all categories are stored beside it.
"""

from __future__ import annotations

import json
from typing import Any

from mill.api.errors import RunError, SpecError
from mill.metrics.differences import Value
from mill.store.sample_row import FAILED, PENDING, STATUSES
from mill.view.filters import Clause
from mill.view.index import ResultsIndex
from mill.view.queries import files_of, find_run, read_line
from mill.view.sample_line import TOKENS
from mill.view.tokens import divergence_of

BOTH_RIGHT, REGRESSION, IMPROVEMENT, BOTH_WRONG, OTHER = range(5)
CELLS = ("both_right", "regression", "improvement", "both_wrong", "other")
MARGINS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # steps of the slider, in nats: counts of each are stored
MOST_MARGINS = 1_000  # changed texts whose divergence is looked up when two runs are first compared
JOINED = "pairs JOIN samples x ON x.id = pairs.a JOIN samples y ON y.id = pairs.b"
COUNTS = (
    "count(*) AS n, sum(changed) AS changed, sum(flipped) AS flipped, sum(other_prompt) AS other_prompt, "
    "sum(changed AND margin IS NULL) AS no_margin"
)
_STEP = " ".join(f"WHEN margin < {margin} THEN {number}" for number, margin in enumerate(MARGINS))
_PENDING = STATUSES.index(PENDING)
_FAILED = STATUSES.index(FAILED)
_IS_RIGHT = f"CASE WHEN {{0}}.status = {_FAILED} THEN 0 WHEN {{0}}.{{1}} = 1 THEN 1 WHEN {{0}}.{{1}} = 0 THEN 0 END"
_IS_GRADED = f"""
    SELECT 1 FROM samples WHERE file = ? AND status NOT IN ({_PENDING}, {_FAILED}) AND {{}} NOT IN (0, 1) LIMIT 1
"""
_PAIR = f"""
    INSERT INTO pairs (
        comparison, file, a, b, category, cell, changed, flipped, other_prompt, margin, value_a, value_b, difference
    )
    SELECT ?, x.file, x.id, y.id, x.category,
        CASE ({{right_a}}) * 2 + ({{right_b}})
            WHEN 3 THEN {BOTH_RIGHT} WHEN 2 THEN {REGRESSION} WHEN 1 THEN {IMPROVEMENT} WHEN 0 THEN {BOTH_WRONG}
            ELSE {OTHER} END,
        x.answer_key != y.answer_key, x.extracted_key != y.extracted_key, x.prompt_key != y.prompt_key,
        x.margin, x.{{a}}, y.{{b}}, y.{{b}} - x.{{a}}
    FROM samples x CROSS JOIN samples y INDEXED BY samples_by_key ON y.file = ? AND y.key = x.key
    WHERE x.id BETWEEN ? AND ? AND +x.file = ? AND x.status != {_PENDING} AND y.status != {_PENDING}
"""


def comparison(index: ResultsIndex, a: str, b: str, metric: str = "") -> Any:
    """The stored comparison of two runs by a metric, made where there is none or a run has changed since. Without a metric
    each task is compared by its first one; samples without an answer yet are not compared."""
    if find_run(index, a).uid == find_run(index, b).uid:
        raise SpecError("a run is not compared with itself: choose another one")
    sides = [{row["task"]: row for row in files_of(index, uid).values()} for uid in (a, b)]
    columns = {task: _columns(sides[0][task], sides[1][task], metric) for task in sides[0] if task in sides[1]}
    tasks = [task for task, found in columns.items() if found is not None]
    if columns and not tasks:
        raise RunError(f"no task that both runs have is scored by {metric[:60]}")
    if not tasks:
        names = [", ".join(list(side)[:5]) or "none" for side in sides]
        raise RunError(f"the two runs have no task in common: one has {names[0]}, the other {names[1]}")
    used = json.dumps([[side[task]["id"], side[task]["last"]] for task in tasks for side in sides])
    stored = _stored(index, a, b, metric)
    if stored is not None and stored["files"] == used:
        return stored
    with index.database.change() as change:
        stored = _stored(index, a, b, metric)
        if stored is not None and stored["files"] == used:  # another thread has just made it
            return stored
        if stored is not None:  # of an earlier state of the runs
            for table, column in (("pairs", "comparison"), ("pair_counts", "comparison"), ("comparisons", "id")):
                change.execute(f"DELETE FROM {table} WHERE {column} = ?", (stored["id"],))
        number = change.execute(
            "INSERT INTO comparisons (a, b, metric, files) VALUES (?, ?, ?, ?)", (a, b, metric, used)
        ).lastrowid
        samples = 0
        for task in tasks:
            first, second = sides[0][task], sides[1][task]
            samples += sum(sum(json.loads(side["statuses"]).values()) for side in (first, second))
            query = _PAIR.format(**_sql_names(change, (first["id"], second["id"]), columns[task] or ("v0", "v0")))
            change.execute(query, (number, second["id"], first["first"], first["last"], first["id"]))
        count = "SELECT count(*), coalesce(min(id), 0), coalesce(max(id), 0) FROM pairs WHERE comparison = ?"
        pairs, start, end = change.execute(count, (number,)).fetchone()
        update = "UPDATE comparisons SET unpaired = ?, first = ?, last = ? WHERE id = ?"
        change.execute(update, (samples - 2 * pairs, start, end, number))
        _look_up_margins(index, change, number)
        _count_pairs(change, number, start, end)
    return _stored(index, a, b, metric)


def _columns(first: Any, second: Any, metric: str) -> tuple[str, str] | None:
    """The columns of a metric in the rows of both files; None where one does not have it."""
    if not metric:
        return "v0", "v0"
    names = [json.loads(file["metrics"] or "[]") for file in (first, second)]
    return (f"v{names[0].index(metric)}", f"v{names[1].index(metric)}") if all(metric in one for one in names) else None


def _sql_names(change: Any, files: tuple[int, int], columns: tuple[str, str]) -> dict[str, str]:
    """Samples are right or wrong where the values of a task are all 0 or 1. Those of a graded task are compared by their
    means: those that happen to be 0 or 1 are a selection."""
    graded = any(
        change.execute(_IS_GRADED.format(column), (file,)).fetchone() for file, column in zip(files, columns, strict=True)
    )
    sides = {
        f"right_{side}": "NULL" if graded else _IS_RIGHT.format(table, column)
        for side, table, column in zip("ab", "xy", columns, strict=True)
    }
    return {"a": columns[0], "b": columns[1], **sides}


def graded_values(index: ResultsIndex, clause: Clause) -> dict[tuple[int, int], list[tuple[Value, Value]]]:
    """By file and category: the values of the pairs that are neither right nor wrong."""
    query = (
        "SELECT pairs.file, pairs.category, value_a, value_b, x.status AS status_a, y.status AS status_b "
        f"FROM {JOINED} WHERE {clause.text} AND cell = {OTHER}"
    )
    found: dict[tuple[int, int], list[tuple[Value, Value]]] = {}
    for row in index.database.connection().execute(query, clause.parameters):
        sides: list[Value] = ["failed" if row[f"status_{side}"] == _FAILED else row[f"value_{side}"] for side in "ab"]
        found.setdefault((row["file"], row["category"]), []).append((sides[0], sides[1]))
    return found


def _stored(index: ResultsIndex, a: str, b: str, metric: str) -> Any:
    query = "SELECT * FROM comparisons WHERE a = ? AND b = ? AND metric = ?"
    return index.database.connection().execute(query, (a, b, metric)).fetchone()


def _look_up_margins(index: ResultsIndex, change: Any, number: Any) -> None:
    """The margins of generated texts that changed, flips first: they are in the samples, not in the index."""
    query = (
        f"SELECT pairs.id, x.file AS file_a, x.offset AS offset_a, x.length AS length_a, x.name AS name_a, "
        f"y.file AS file_b, y.offset AS offset_b, y.length AS length_b, y.name AS name_b FROM {JOINED} "
        f"WHERE comparison = ? AND changed AND pairs.margin IS NULL AND x.flags & {TOKENS} AND y.flags & {TOKENS} "
        f"ORDER BY cell IN ({REGRESSION}, {IMPROVEMENT}) DESC LIMIT ?"
    )
    found = []
    for row in change.execute(query, (number, MOST_MARGINS)).fetchall():
        sides = [{name: row[f"{name}_{side}"] for name in ("file", "offset", "length", "name")} for side in "ab"]
        divergence = divergence_of(*(read_line(index, side) for side in sides))
        if divergence is not None and divergence.margin is not None:
            found.append((divergence.margin, row["id"]))
    change.executemany("UPDATE pairs SET margin = ? WHERE id = ?", found)


def _count_pairs(change: Any, number: Any, start: int, end: int) -> None:
    """The counts of all categories, for each step of the slider apart. A pair without a margin is above all steps."""
    change.execute(
        f"INSERT INTO pair_counts SELECT ?, file, category, cell, CASE {_STEP} ELSE {len(MARGINS)} END AS step, {COUNTS} "
        "FROM pairs WHERE id BETWEEN ? AND ? GROUP BY file, category, cell, step",
        (number, start, end),
    )
