"""Two runs sample by sample: which answers changed, which became right or wrong, and whether that is noise."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mill.api.errors import SpecError, UnknownName
from mill.checks.kinds import explain
from mill.checks.measurements import NEAR_TIE
from mill.checks.result import Check, Variant
from mill.metrics.differences import LOWER, Value, direction, paired_loss, value_of_failures, valued_pairs
from mill.metrics.estimate import Estimate
from mill.metrics.paired import holm, mcnemar, mean_of, rate, rate_difference
from mill.store.sample_row import STATUSES
from mill.view.filters import Clause, Page, cursor_of, order_clause, read_names, read_page, search_query
from mill.view.index import ResultsIndex
from mill.view.pairs import CELLS, COUNTS, JOINED, MARGINS, comparison, graded_values
from mill.view.queries import category_names, excerpt, files_of, find_run

FLIPS = ("regression", "improvement")
SORTS = {
    "order": "pairs.id",
    "category": "pairs.category",
    "cell": "pairs.cell",
    "margin": "pairs.margin",
    "difference": "pairs.difference",
}
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


def compare_summary(index: ResultsIndex, chosen: PairFilter) -> dict[str, Any]:
    """The 2×2 of right and wrong with McNemar's test, in all and for each category, corrected by Holm's method."""
    stored = comparison(index, chosen.a, chosen.b, chosen.metric)
    everything = replace(chosen, cells=(), changed=False, search="", page=Page(), least_margin=0.0)
    known = index.remembered.get((stored["id"], everything))
    if known is None:
        known = index.remember((stored["id"], everything), _summary(index, everything, stored))
    return {**known, "above": _above(index, replace(everything, least_margin=chosen.least_margin), stored)}


def _above(index: ResultsIndex, chosen: PairFilter, stored: Any) -> dict[str, int]:
    """The pairs of each cell that the near-tie slider leaves in the list. The tests are over all pairs: without those that
    changed at a small margin, they would be over a selection."""
    rows = _stored_counts(index, chosen, stored)
    return {name: sum(row["n"] for row in rows if row["cell"] == number) for number, name in enumerate(CELLS)}


def _stored_counts(index: ResultsIndex, chosen: PairFilter, stored: Any) -> list[Any]:
    """A row for each category and cell. A margin between two steps is counted from the pairs themselves."""
    connection = index.database.connection()
    clause = _where(index, chosen, stored)
    if chosen.least_margin not in MARGINS:
        near = f"coalesce(sum(margin < {NEAR_TIE}), 0) AS near"
        query = f"SELECT file, category, cell, {COUNTS}, {near} FROM pairs WHERE {clause.text} GROUP BY file, category, cell"
        return connection.execute(query, clause.parameters).fetchall()
    query = (
        "SELECT file, category, cell, sum(n) AS n, sum(changed) AS changed, sum(flipped) AS flipped, "
        "sum(other_prompt) AS other_prompt, sum(no_margin) AS no_margin, "
        f"sum(CASE WHEN step <= {MARGINS.index(NEAR_TIE)} THEN n ELSE 0 END) AS near FROM pair_counts "
        "WHERE comparison = ? AND step > ? GROUP BY file, category, cell"
    )
    rows = connection.execute(query, (stored["id"], MARGINS.index(chosen.least_margin))).fetchall()
    files = files_of(index, chosen.a, chosen.task)
    names = category_names(index, {row["category"] for row in rows})
    return [
        row
        for row in rows
        if row["file"] in files and (chosen.category is None or names[row["category"]] == chosen.category)
    ]


def _summary(index: ResultsIndex, everything: PairFilter, stored: Any) -> dict[str, Any]:
    rows = _stored_counts(index, everything, stored)
    files = files_of(index, everything.a)
    names = category_names(index, {row["category"] for row in rows})
    groups: dict[tuple[int, int], list[Any]] = {}
    for row in rows:
        groups.setdefault((row["file"], row["category"]), []).append(row)
    values = graded_values(index, _where(index, everything, stored))
    lower = {file for file, row in files.items() if direction(everything.metric or _first_metric(row)) == LOWER}
    graded = _graded({key: pairs for key, pairs in values.items() if key[0] not in lower})
    listed = [
        {"task": files[file]["task"], "category": names[category], **_counts(found, graded.get((file, category), []))}
        for (file, category), found in groups.items()
    ]
    corrected = holm([math.nan if entry["p"] is None else entry["p"] for entry in listed])
    for entry, p in zip(listed, corrected, strict=True):
        entry["p_corrected"] = None if math.isnan(p) else p
    counts = _counts(rows, [pair for pairs in graded.values() for pair in pairs])
    tasks = list(dict.fromkeys(entry["task"] for entry in listed))
    sentences = [*_verdict(index, counts, everything, tasks), *_near_ties(rows)]
    names_of = [json.loads(row["metrics"] or "[]") for row in files.values() if row["task"] in tasks]
    metrics = list(dict.fromkeys(name for one in names_of for name in one))
    return {**counts, "metrics": metrics, "unpaired": stored["unpaired"], "groups": listed, "sentences": sentences}


def _verdict(index: ResultsIndex, counts: Mapping[str, Any], chosen: PairFilter, tasks: Sequence[str]) -> list[str]:
    """What a check would report of these pairs, in plain sentences."""
    cells = counts["cells"]
    n, worse, better = sum(cells.values()) - cells["other"], cells["regression"], cells["improvement"]
    if not n and counts["scores"] is None:
        return []
    variant = Variant(chosen.b, counts={"samples": counts["n"], "regressions": worse, "improvements": better})
    if n:
        variant.metrics["acc_baseline"] = rate(cells["both_right"] + worse, n)
        variant.metrics["acc"] = rate(cells["both_right"] + better, n)
        variant.metrics["acc_drop"] = rate_difference(worse, better, n)
        variant.p_values["acc_drop"] = mcnemar(worse, better)
    if counts["scores"] is not None:
        for name, estimate in zip(("score_baseline", "score", "score_drop"), counts["scores"], strict=True):
            variant.metrics[name] = Estimate(**estimate)
        variant.p_values["score_drop"] = counts["score_p"]
    planned = find_run(index, chosen.a).manifest.get("tasks", {})
    limited = any(planned[task]["n"] < planned[task]["total"] for task in tasks if task in planned)
    settings = {"limit": n if limited else None}
    return explain(Check("compare", list(tasks), [variant], chosen.a, settings), variant)


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


def _first_metric(file: Any) -> str:
    names: list[str] = json.loads(file["metrics"] or "[]")
    return names[0] if names else ""


def _graded(groups: Mapping[tuple[int, int], Sequence[tuple[Value, Value]]]) -> dict[tuple[int, int], list[Any]]:
    """The pairs with a value, where failures count as in the whole task."""
    tasks: dict[int, list[tuple[Value, Value]]] = {}
    for (file, _), pairs in groups.items():
        tasks.setdefault(file, []).extend(pairs)
    worst = {file: value_of_failures(pairs) for file, pairs in tasks.items()}
    return {key: valued_pairs(pairs, worst[key[0]]) for key, pairs in groups.items()}


def _counts(rows: Sequence[Any], graded: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Right and wrong answers, and the mean scores of samples that are graded. The test of a group is that of the first."""
    found, scores = _binary_counts(rows), None
    if graded:
        loss = paired_loss(graded)
        means = [mean_of(side) for side in zip(*graded, strict=True)]
        scores = [vars(estimate) for estimate in (*means, loss.estimate)]
        found["score_p"] = None if math.isnan(loss.p) else loss.p
        found["p"] = found["score_p"] if found["p"] is None else found["p"]
    return {**found, "scores": scores}


def _binary_counts(rows: Sequence[Any]) -> dict[str, Any]:
    cells = {name: sum(row["n"] for row in rows if row["cell"] == number) for number, name in enumerate(CELLS)}
    n = sum(cells.values()) - cells["other"]
    return {
        "n": sum(cells.values()),
        "cells": cells,
        "accuracy": [(cells["both_right"] + cells[name]) / n for name in ("regression", "improvement")] if n else None,
        "lost": vars(rate_difference(cells["regression"], cells["improvement"], n)) if n else None,
        "p": mcnemar(cells["regression"], cells["improvement"]) if n else None,
        "changed": sum(row["changed"] for row in rows),
        "flipped": sum(row["flipped"] for row in rows),
        "other_prompt": sum(row["other_prompt"] for row in rows),
        "no_margin": sum(row["no_margin"] for row in rows),
    }


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
        "rows": [{**_listed(row, files, names), "responses": _responses(index, row)} for row in page],
        "next": cursor_of(page[-1][column], page[-1]["id"]) if len(rows) > len(page) else None,
    }


def _responses(index: ResultsIndex, row: Any) -> list[str | None]:
    """The start of both answers."""
    sides = [{name: row[f"{name}_{side}"] for name in ("file", "offset", "length")} for side in "ab"]
    return [excerpt(index, side)["response"] for side in sides]


def _listed(row: Any, files: Mapping[int, Any], names: Mapping[int, str]) -> dict[str, Any]:
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
