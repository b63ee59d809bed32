"""Two runs sample by sample: which answers changed, which became right or wrong, and whether that is noise.

Pairs are made once for two runs and stored in the index, so that filters and sorting read a narrow table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mill.api.errors import RunError, SpecError, UnknownName
from mill.metrics.paired import holm, mcnemar, rate_difference
from mill.view.filters import Clause, Page, cursor_of, order_clause, read_names, read_page, search_query
from mill.view.index import ResultsIndex
from mill.view.queries import category_names, files_of, find_run, read_line
from mill.view.sample_line import FAILED, RIGHT, STATUSES, TOKENS, WRONG
from mill.view.tokens import divergence_of

BOTH_RIGHT, REGRESSION, IMPROVEMENT, BOTH_WRONG, OTHER = range(5)
CELLS = ("both_right", "regression", "improvement", "both_wrong", "other")
MOST_MARGINS = 1_000  # changed texts whose divergence is looked up when two runs are first compared
SORTS = {
    "order": "pairs.id",
    "category": "pairs.category",
    "cell": "pairs.cell",
    "margin": "pairs.margin",
    "difference": "pairs.difference",
}
_IS_RIGHT = f"CASE {{0}}.status WHEN {RIGHT} THEN 1 WHEN {WRONG} THEN 0 WHEN {FAILED} THEN 0 END"
_PAIR = f"""
    INSERT INTO pairs (comparison, file, a, b, category, cell, changed, other_prompt, margin, difference)
    SELECT ?, x.file, x.id, y.id, x.category,
        CASE ({_IS_RIGHT.format("x")}) * 2 + ({_IS_RIGHT.format("y")})
            WHEN 3 THEN {BOTH_RIGHT} WHEN 2 THEN {REGRESSION} WHEN 1 THEN {IMPROVEMENT} WHEN 0 THEN {BOTH_WRONG}
            ELSE {OTHER} END,
        x.answer_key != y.answer_key, x.prompt_key != y.prompt_key, x.margin, y.v0 - x.v0
    FROM samples x CROSS JOIN samples y INDEXED BY samples_by_key ON y.file = ? AND y.key = x.key
    WHERE x.id BETWEEN ? AND ? AND +x.file = ?
"""
_LISTED = (
    "pairs.id, pairs.file, pairs.a, pairs.b, pairs.category, cell, changed, other_prompt, pairs.margin, difference, "
    "x.name, x.status AS status_a, y.status AS status_b, x.v0 AS value_a, y.v0 AS value_b"
)
_JOINED = "pairs JOIN samples x ON x.id = pairs.a JOIN samples y ON y.id = pairs.b"


@dataclass(frozen=True)
class PairFilter:
    """Which pairs are shown. `least_margin` hides answers at a near-tie; pairs whose margin is not known stay."""

    a: str
    b: str
    task: str = ""
    category: str | None = None
    cells: tuple[str, ...] = ()
    changed: bool = False
    least_margin: float = 0.0
    search: str = ""
    page: Page = field(default_factory=Page)


def read_pair_filter(given: Mapping[str, str]) -> PairFilter:
    try:
        margin = float(given.get("margin") or 0.0)
    except ValueError:
        raise SpecError(f"margin={given['margin'][:20]}: a number is needed") from None
    return PairFilter(
        given.get("a", ""),
        given.get("b", ""),
        given.get("task", ""),
        given.get("category"),
        read_names(given.get("cell", ""), CELLS, "cell"),
        given.get("changed") == "1",
        margin,
        given.get("q", "").strip(),
        read_page(given, SORTS),
    )


def comparison(index: ResultsIndex, a: str, b: str) -> Any:
    """The stored comparison of two runs, made where there is none or a run has changed since."""
    if find_run(index, a).uid == find_run(index, b).uid:
        raise SpecError("a run is not compared with itself: choose another one")
    sides = [{row["task"]: row for row in files_of(index, uid).values()} for uid in (a, b)]
    tasks = [task for task in sides[0] if task in sides[1]]
    if not tasks:
        names = [", ".join(list(side)[:5]) or "none" for side in sides]
        raise RunError(f"the two runs have no task in common: one has {names[0]}, the other {names[1]}")
    used = json.dumps([[side[task]["id"], side[task]["last"]] for task in tasks for side in sides])
    stored = _stored(index, a, b)
    if stored is not None and stored["files"] == used:
        return stored
    with index.database.change() as change:
        stored = _stored(index, a, b)
        if stored is not None and stored["files"] == used:  # another thread has just made it
            return stored
        if stored is not None:  # of an earlier state of the runs
            change.execute("DELETE FROM pairs WHERE comparison = ?", (stored["id"],))
            change.execute("DELETE FROM comparisons WHERE id = ?", (stored["id"],))
        number = change.execute("INSERT INTO comparisons (a, b, files) VALUES (?, ?, ?)", (a, b, used)).lastrowid
        samples = 0
        for task in tasks:
            first, second = sides[0][task], sides[1][task]
            samples += sum(sum(json.loads(side["statuses"]).values()) for side in (first, second))
            change.execute(_PAIR, (number, second["id"], first["first"], first["last"], first["id"]))
        pairs = change.execute("SELECT count(*) FROM pairs WHERE comparison = ?", (number,)).fetchone()[0]
        change.execute("UPDATE comparisons SET unpaired = ? WHERE id = ?", (samples - 2 * pairs, number))
        _look_up_margins(index, change, number)
    return _stored(index, a, b)


def _stored(index: ResultsIndex, a: str, b: str) -> Any:
    query = "SELECT * FROM comparisons WHERE a = ? AND b = ?"
    return index.database.connection().execute(query, (a, b)).fetchone()


def _look_up_margins(index: ResultsIndex, change: Any, number: Any) -> None:
    """The margins of generated texts that changed, flips first: they are in the samples, not in the index.

    In the transaction that makes the pairs, so that no other thread counts pairs without their margins."""
    query = (
        f"SELECT pairs.id, x.file AS file_a, x.offset AS offset_a, x.length AS length_a, x.name AS name_a, "
        f"y.file AS file_b, y.offset AS offset_b, y.length AS length_b, y.name AS name_b FROM {_JOINED} "
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


def compare_summary(index: ResultsIndex, chosen: PairFilter) -> dict[str, Any]:
    """The 2×2 of right and wrong with McNemar's test, in all and for each category, corrected by Holm's method."""
    stored = comparison(index, chosen.a, chosen.b)
    everything = replace(chosen, cells=(), changed=False, search="")
    clause = _where(index, everything, stored["id"])
    query = (
        "SELECT file, category, cell, count(*) AS n, sum(changed) AS changed, sum(other_prompt) AS other_prompt, "
        "sum(changed AND margin IS NULL) AS no_margin, sum(difference) AS difference, count(difference) AS valued "
        f"FROM pairs WHERE {clause.text} GROUP BY file, category, cell"
    )
    rows = index.database.connection().execute(query, clause.parameters).fetchall()
    files = files_of(index, chosen.a)
    names = category_names(index, {row["category"] for row in rows})
    groups: dict[tuple[int, int], list[Any]] = {}
    for row in rows:
        groups.setdefault((row["file"], row["category"]), []).append(row)
    listed = [
        {"task": files[file]["task"], "category": names[category], **_counts(found)}
        for (file, category), found in groups.items()
    ]
    for entry, corrected in zip(listed, holm([entry["p"] for entry in listed]), strict=True):
        entry["p_corrected"] = corrected
    return {**_counts(rows), "unpaired": stored["unpaired"], "groups": listed}


def _counts(rows: Sequence[Any]) -> dict[str, Any]:
    cells = {name: sum(row["n"] for row in rows if row["cell"] == number) for number, name in enumerate(CELLS)}
    n = sum(cells.values()) - cells["other"]
    valued = sum(row["valued"] for row in rows)
    return {
        "n": sum(cells.values()),
        "cells": cells,
        "accuracy": [(cells["both_right"] + cells[name]) / n for name in ("regression", "improvement")] if n else None,
        "lost": vars(rate_difference(cells["regression"], cells["improvement"], n)) if n else None,
        "p": mcnemar(cells["regression"], cells["improvement"]),
        "changed": sum(row["changed"] for row in rows),
        "other_prompt": sum(row["other_prompt"] for row in rows),
        "no_margin": sum(row["no_margin"] for row in rows),
        "mean_difference": sum(row["difference"] or 0.0 for row in rows) / valued if valued else None,
    }


def list_pairs(index: ResultsIndex, chosen: PairFilter) -> dict[str, Any]:
    """A page of pairs, how many there are, and the cursor of the next page."""
    stored = comparison(index, chosen.a, chosen.b)
    rows, files = _rows(index, chosen, stored["id"]), files_of(index, chosen.a)
    clause = _where(index, chosen, stored["id"])
    query = f"SELECT count(*) FROM pairs WHERE {clause.text}"
    total = index.database.connection().execute(query, clause.parameters).fetchone()[0]
    names = category_names(index, {row["category"] for row in rows})
    page, column = rows[: chosen.page.limit], SORTS[chosen.page.sort].partition(".")[2]
    return {
        "total": total,
        "rows": [_listed(row, files, names) for row in page],
        "next": cursor_of(page[-1][column], page[-1]["id"]) if len(rows) > len(page) else None,
    }


def _listed(row: Any, files: Mapping[int, Any], names: Mapping[int, str]) -> dict[str, Any]:
    return {
        "task": files[row["file"]]["task"],
        "id": row["name"],
        "category": names[row["category"]],
        "cell": CELLS[row["cell"]],
        "changed": bool(row["changed"]),
        "other_prompt": bool(row["other_prompt"]),
        "margin": row["margin"],
        "statuses": [STATUSES[row["status_a"]], STATUSES[row["status_b"]]],
        "values": [row["value_a"], row["value_b"]],
    }


def _rows(index: ResultsIndex, chosen: PairFilter, number: int) -> list[Any]:
    """The narrow table is sorted first; only the rows of the page are joined with their samples."""
    clause = _where(index, chosen, number)
    order = order_clause(clause, SORTS[chosen.page.sort], "pairs.id", chosen.page)
    inner = f"SELECT id FROM pairs WHERE {clause.text} ORDER BY {order} LIMIT ?"
    query = f"SELECT {_LISTED} FROM {_JOINED} WHERE pairs.id IN ({inner}) ORDER BY {order}"
    return index.database.connection().execute(query, (*clause.parameters, chosen.page.limit + 1)).fetchall()


def _where(index: ResultsIndex, chosen: PairFilter, number: int) -> Clause:
    clause = Clause()
    clause.add("+comparison = ?", number)
    first, last = (
        index.database.connection().execute("SELECT min(id), max(id) FROM pairs WHERE comparison = ?", (number,)).fetchone()
    )
    clause.add("pairs.id BETWEEN ? AND ?", first or 0, last or 0)
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
    stored = comparison(index, chosen.a, chosen.b)
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
    column = SORTS[chosen.page.sort].partition(".")[2]
    page = replace(chosen.page, after=(pair[column], pair["id"]), limit=1)
    flips = ("regression", "improvement")
    wanted = {
        "previous": replace(chosen, page=replace(page, backwards=True)),
        "next": replace(chosen, page=page),
        "next_flip": replace(chosen, cells=flips, page=page),
        "first_flip": replace(chosen, cells=flips, page=replace(page, after=None)),
    }
    files, found = files_of(index, chosen.a), dict[str, Any]()
    for name, one in wanted.items():
        rows = _rows(index, one, pair["comparison"])[:1]
        found[name] = {"task": files[rows[0]["file"]]["task"], "id": rows[0]["name"]} if rows else None
    first = found.pop("first_flip")
    return {**found, "next_flip": found["next_flip"] or first}
