"""Questions to the index, as the pages and `mill.load` need them: which samples, in which order, and their rows as plain
dictionaries, ready for JSON."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from mill.api.errors import RunError, SpecError, UnknownName
from mill.metrics.aggregate import mean
from mill.metrics.paired import rate
from mill.store.sample_row import FAILED, GRADED, RIGHT, STATUSES, WRONG, plain, read_any_row, unescaped, with_status
from mill.store.schema import BenchmarkResult, TaskResult
from mill.support.validate import parse_json
from mill.view.database import FLAG_BITS, value_column
from mill.view.index import ResultsIndex, raw_line
from mill.view.run_info import RunInfo

MOST_ROWS = 500
SORTS = {
    "order": "id",
    "id": "name",
    "category": "category",
    "status": "status",
    "prompt_tokens": "prompt_tokens",
    "output_tokens": "output_tokens",
    "seconds": "seconds",
    "margin": "margin",
    "worst_token": "worst",
}
"""Beside these `v0`, `v1` and so on: the metrics of the task."""
_METRIC = re.compile(r"v(\d{1,3})")


@dataclass(frozen=True)
class Page:
    """A part of a list: `after` is the last row before it, by its value in the sorted column and its number."""

    sort: str = "order"
    descending: bool = False
    limit: int = 100
    after: tuple[Any, int] | None = None
    backwards: bool = False
    """The rows before `after`, nearest first."""


@dataclass(frozen=True)
class SampleFilter:
    run: str = ""
    task: str = ""
    category: str | None = None
    statuses: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    search: str = ""
    page: Page = field(default_factory=Page)


def read_filter(given: Mapping[str, str]) -> SampleFilter:
    """From the parameters of a URL; refuses values that it does not know, so that no filter is ignored silently."""
    return SampleFilter(
        run=given.get("run", ""),
        task=given.get("task", ""),
        category=given.get("category"),
        statuses=read_names(given.get("status", ""), STATUSES, "status"),
        flags=read_names(given.get("flag", ""), FLAG_BITS, "flag"),
        search=given.get("q", "").strip(),
        page=read_page(given, SORTS),
    )


def read_page(given: Mapping[str, str], sorts: Mapping[str, str]) -> Page:
    sort = given.get("sort") or "order"
    if sorts is not SORTS or not _METRIC.fullmatch(sort):
        read_names(sort, sorts, "column")
    limit = given.get("limit", "100")
    if not limit.isdecimal() or not 1 <= int(limit[:6]) <= MOST_ROWS:
        raise SpecError(f"limit={limit[:20]}: a number from 1 to {MOST_ROWS} is needed")
    after = read_cursor(given["after"]) if given.get("after") else None
    return Page(sort, given.get("desc") == "1", int(limit), after)


def sort_column(page: Page) -> str:
    """The column by which samples are sorted."""
    found = _METRIC.fullmatch(page.sort)
    return SORTS[page.sort] if found is None else value_column(int(found[1]))


def read_names(text: str, known: Sequence[str] | Mapping[str, Any], kind: str) -> tuple[str, ...]:
    """Names that are separated by commas."""
    names = tuple(part for part in text.split(",") if part)
    for name in names:
        if name not in known:
            raise UnknownName(kind, name[:60], list(known), hint=f"it is one of {', '.join(known)}")
    return names


def read_cursor(text: str) -> tuple[Any, int]:
    """As `cursor_of` writes it."""
    value, _, number = text.rpartition("~")
    kind, _, rest = value.partition(":")
    try:
        if not number.isdecimal() or len(number) > 18:
            raise ValueError
        return (float(rest) if kind == "n" else rest if kind == "t" else None), int(number)
    except ValueError:
        raise SpecError(f"after={text[:40]}: not a position in a list") from None


def cursor_of(value: Any, number: int) -> str:
    """The position of a row: `n:NUMBER~ID` or `t:TEXT~ID` by its value in the sorted column, `~ID` where it has none."""
    kind = "" if value is None else f"n:{value!r}" if isinstance(value, (int, float)) else f"t:{value}"
    return f"{kind}~{number}"


def all_rows(query: Callable[[Page], Mapping[str, Any]], limit: int | None = None) -> list[dict[str, Any]]:
    """The rows of a whole list, page by page."""
    rows: list[dict[str, Any]] = []
    after = None
    while limit is None or len(rows) < limit:
        found = query(Page(limit=MOST_ROWS, after=after))
        rows += found["rows"]
        if found["next"] is None:
            break
        after = read_cursor(found["next"])
    return rows[:limit]


@dataclass
class Clause:
    """Conditions of a WHERE, with their parameters."""

    conditions: list[str] = field(default_factory=list)
    parameters: list[Any] = field(default_factory=list)

    def add(self, condition: str, *parameters: Any) -> None:
        self.conditions.append(condition)
        self.parameters += parameters

    @property
    def text(self) -> str:
        return " AND ".join(self.conditions) or "1"


def order_clause(clause: Clause, column: str, number: str, page: Page) -> str:
    """ORDER BY, with the condition that continues after a row. Rows without a value come last, in both directions."""
    if column == number:
        forward = page.descending == page.backwards
        if page.after is not None:
            clause.add(f"{number} {'>' if forward else '<'} ?", page.after[1])
        return f"{number} {'ASC' if forward else 'DESC'}"
    direction, way = "DESC" if page.descending != page.backwards else "ASC", "DESC" if page.backwards else "ASC"
    if page.after is not None:
        value, at = page.after
        further, compare = "<" if page.backwards else ">", "<" if direction == "DESC" else ">"
        if value is None:
            same = f"({column} IS NULL AND {number} {further} ?)"
            clause.add(f"({same} OR {column} IS NOT NULL)" if page.backwards else same, at)
        else:
            rest = "" if page.backwards else f" OR {column} IS NULL"
            clause.add(f"({column} {compare} ? OR ({column} = ? AND {number} {further} ?){rest})", value, value, at)
    return f"({column} IS NULL) {way}, {column} {direction}, {number} {way}"


def search_query(text: str) -> str:
    """The words of a search as an FTS5 query: all of them must be there, the last may be the start of a word.

    Words are split where FTS5's tokenizer unicode61 splits texts, and quoted, so that none is an operator of its own.
    """
    kinds = ((char, unicodedata.category(char)) for char in unicodedata.normalize("NFC", text))
    words = "".join(char if kind[0] in "LN" or kind == "Co" else " " for char, kind in kinds).split()
    quoted = [f'"{word}"' for word in words]
    return " ".join([*quoted[:-1], f"{quoted[-1]}*"]) if quoted else ""


EXCERPT = 120
LONGEST_LISTED = 1_000_000
_COLUMNS = (
    "samples.id, file, offset, length, name, category, status, flags, prompt_tokens, output_tokens, seconds, margin, "
    "worst, worst_at, numbers"
)


def find_run(index: ResultsIndex, uid: str) -> RunInfo:
    runs = index.runs  # once: another thread replaces them
    if uid not in runs:
        raise UnknownName("run", uid[:60], runs, hint="it may have been removed or moved: the list of runs has all")
    return runs[uid]


def files_of(index: ResultsIndex, run: str, task: str = "") -> dict[int, Any]:
    """The samples files of a run by their number, or that of one task."""
    rows = index.database.connection().execute("SELECT * FROM files WHERE run = ? ORDER BY id", (run,)).fetchall()
    found = {row["id"]: row for row in rows if not task or row["task"] == task}
    if task and not found:
        tasks = [row["task"] for row in rows]
        raise UnknownName("task of this run", task[:80], tasks, hint=f"it has {', '.join(tasks[:20])}")
    return found


def list_samples(index: ResultsIndex, chosen: SampleFilter) -> dict[str, Any]:
    """A page of samples, how many there are, and the cursor of the next page."""
    files = files_of(index, find_run(index, chosen.run).uid, chosen.task)
    rows = _rows(index, chosen, files)
    total = _count(index, chosen, files)
    more = len(rows) > chosen.page.limit
    rows = rows[: chosen.page.limit]
    return {
        "total": total,
        "rows": [{**_listed(row, files), **excerpt(index, row)} for row in rows],
        "next": cursor_of(rows[-1]["sorted"], rows[-1]["id"]) if more else None,
        "metrics": {files[number]["task"]: json.loads(files[number]["metrics"] or "[]") for number in files},
    }


def _rows(index: ResultsIndex, chosen: SampleFilter, files: Mapping[int, Any]) -> list[Any]:
    """The rows of a page, and one more where there is a next page."""
    clause = samples_where(index, chosen, files)
    column = sort_column(chosen.page)
    order = order_clause(clause, column, "id", chosen.page)
    query = f"SELECT {_COLUMNS}, {column} AS sorted FROM samples WHERE {clause.text} ORDER BY {order} LIMIT ?"
    rows = index.database.connection().execute(query, (*clause.parameters, chosen.page.limit + 1)).fetchall()
    names = category_names(index, {row["category"] for row in rows})
    return [{**dict(row), "category_name": names[row["category"]]} for row in rows]


def _count(index: ResultsIndex, chosen: SampleFilter, files: Mapping[int, Any]) -> int:
    """How many samples fit: from the counts of the files where these are enough, and remembered where they are not."""
    if chosen.category is None and not chosen.flags and not search_query(chosen.search):
        counts = [json.loads(row["statuses"] or "{}") for row in files.values()]
        return sum(count for one in counts for name, count in one.items() if name in (chosen.statuses or STATUSES))
    connection, clause = index.database.connection(), samples_where(index, chosen, files)
    searched = connection.execute("SELECT coalesce(sum(searched), 0) FROM files").fetchone()[0] if chosen.search else 0

    def count() -> int:
        query = f"SELECT count(*) FROM samples WHERE {clause.text}"
        return int(connection.execute(query, clause.parameters).fetchone()[0])

    key = ("count", replace(chosen, page=Page()), index.state.version, searched)
    return int(index.once(key, count))


def category_names(index: ResultsIndex, numbers: set[int]) -> dict[int, str]:
    query = f"SELECT id, text FROM names WHERE id IN ({', '.join('?' * len(numbers))})"
    return {row["id"]: row["text"] for row in index.database.connection().execute(query, tuple(numbers))}


def samples_where(index: ResultsIndex, chosen: SampleFilter, files: Mapping[int, Any]) -> Clause:
    """Samples of one file have adjacent numbers, so a range of them is read in order instead of through the index."""
    clause, known = Clause(), [row for row in files.values() if row["first"] is not None]
    if not known:
        clause.add("0")
        return clause
    first, last = min(row["first"] for row in known), max(row["last"] for row in known)
    clause.add("id BETWEEN ? AND ?", first, last)
    clause.add(f"+file IN ({', '.join('?' * len(known))})", *(row["id"] for row in known))
    if chosen.category is not None:
        clause.add("category = (SELECT id FROM names WHERE text = ?)", chosen.category)
    if chosen.statuses:
        clause.add(f"status IN ({', '.join('?' * len(chosen.statuses))})", *map(STATUSES.index, chosen.statuses))
    for flag in chosen.flags:
        clause.add("flags & ?", FLAG_BITS[flag])
    if query := search_query(chosen.search):
        clause.add("id IN (SELECT rowid FROM texts WHERE texts MATCH ? AND rowid BETWEEN ? AND ?)", query, first, last)
    return clause


def _listed(row: Mapping[str, Any], files: Mapping[int, Any]) -> dict[str, Any]:
    file = files[row["file"]]
    metrics = json.loads(file["metrics"] or "[]")
    return {
        "task": file["task"],
        "id": row["name"],
        "category": row["category_name"],
        "status": STATUSES[row["status"]],
        "flags": [name for name, bit in FLAG_BITS.items() if row["flags"] & bit],
        "values": dict(zip_longest(metrics, json.loads(row["numbers"] or "[]"))),
        **{name: row[name] for name in ("prompt_tokens", "output_tokens", "seconds", "margin", "worst", "worst_at")},
    }


def excerpt(index: ResultsIndex, row: Mapping[str, Any]) -> dict[str, Any]:
    """The start of the response and the target, for lists; very long samples have none there."""
    if row["length"] > LONGEST_LISTED:
        return {"response": None, "target": None}
    try:
        sample = read_any_row(raw_line(index, row)[1])
    except (RunError, ValueError):  # the file changes: the next version of the list has it
        return {"response": None, "target": None}
    answer, target = sample.error or sample.response or sample.chosen, plain(sample.target)
    return {
        "response": answer[:EXCERPT] if answer else answer,
        "target": target[:EXCERPT] if isinstance(target, str) else None,
    }


def read_sample(index: ResultsIndex, run: str, task: str, name: str) -> dict[str, Any]:
    """The whole line of a sample, as the run wrote it."""
    return read_line(index, sample_row(index, run, task, name))


def sample_row(index: ResultsIndex, run: str, task: str, name: str) -> Any:
    files = files_of(index, find_run(index, run).uid, task)
    query = "SELECT * FROM samples WHERE file = ? AND name = ?"
    row = index.database.connection().execute(query, (*files, name)).fetchone() if len(files) == 1 else None
    if row is None:
        raise UnknownName("sample", name[:80], (), hint=f"{task} of this run has none with this id")
    return row


def read_line(index: ResultsIndex, row: Any) -> dict[str, Any]:
    """The line of a row of the index; a file that changed meanwhile has another line there."""
    path, raw = raw_line(index, row)
    data = parse_json(raw, f"{path} at byte {row['offset']}", RunError)
    if not isinstance(data, dict) or str(data.get("id")).encode("utf-8", "backslashreplace").decode() != row["name"]:
        raise RunError(f"{path} has changed: the index is being brought up to date")
    try:
        return with_status(unescaped(data), read_any_row(raw))
    except ValueError as error:
        raise RunError(f"{path} at byte {row['offset']} is not a sample: {error}") from error


def neighbours(index: ResultsIndex, chosen: SampleFilter, name: str, task: str) -> dict[str, Any]:
    """The samples before and after one, in the order of a list with the same filter."""
    row = sample_row(index, chosen.run, task, name)
    files = files_of(index, chosen.run, chosen.task)
    query = f"SELECT {sort_column(chosen.page)} FROM samples WHERE id = ?"
    value = index.database.connection().execute(query, (row["id"],)).fetchone()[0]
    here = replace(chosen.page, after=(value, row["id"]), limit=1)
    found = {}
    for side, backwards in (("previous", True), ("next", False)):
        rows = _rows(index, replace(chosen, page=replace(here, backwards=backwards)), files)[:1]
        found[side] = {"task": files[rows[0]["file"]]["task"], "id": rows[0]["name"]} if rows else None
    return found


def categories(index: ResultsIndex, run: str, task: str) -> list[dict[str, Any]]:
    """The categories of a task, with the mean of its first metric and the interval of it."""
    files = files_of(index, run, task)
    (file,) = files.values()
    return list(index.once(("categories", file["id"], file["last"]), lambda: _categories(index, files)))


def _categories(index: ResultsIndex, files: Mapping[int, Any]) -> list[dict[str, Any]]:
    (file,) = files.values()
    metrics = json.loads(file["metrics"] or "[]")
    connection, found = index.database.connection(), list[dict[str, Any]]()
    clause = samples_where(index, SampleFilter(), files)
    query = (
        "SELECT names.text AS category, count(*) AS n, "
        + ", ".join(f"sum(status = {STATUSES.index(name)}) AS {name}" for name in (FAILED, RIGHT, WRONG, GRADED))
        + " FROM samples JOIN names ON names.id = category "
        f"WHERE {clause.text.replace('id BETWEEN', 'samples.id BETWEEN')} GROUP BY category ORDER BY names.text"
    )
    for row in connection.execute(query, clause.parameters).fetchall():
        entry = {name: row[name] for name in ("category", "n", "failed")}
        if row["graded"]:
            clause = samples_where(index, SampleFilter("", category=row["category"]), files)
            query = f"SELECT {value_column(0)} AS value FROM samples WHERE {clause.text} AND value IS NOT NULL"
            values = [[one[0]] for one in connection.execute(query, clause.parameters)]
            entry["estimate"] = vars(mean(values)) if values else None
        else:
            scored = row["right"] + row["wrong"]
            entry["estimate"] = vars(rate(row["right"], scored)) if scored else None
        found.append({**entry, "metric": metrics[0] if metrics else ""})
    return found


def score_rows(run: RunInfo) -> list[dict[str, Any]]:
    """The scores of a run: a row for each metric of each benchmark and task, with the task's benchmark."""
    owners = {task: mean.benchmark for mean in run.results.benchmarks.values() for task in mean.tasks}
    named: list[tuple[dict[str, Any], TaskResult | BenchmarkResult]] = [
        ({"kind": "benchmark", "name": name, "benchmark": "", "tasks": list(mean.tasks)}, mean)
        for name, mean in run.results.benchmarks.items()
    ]
    for name, task in run.results.tasks.items():
        about = {"kind": "task", "name": name, "benchmark": owners.get(name, ""), "tasks": [name], "n_shots": task.n_shots}
        named.append((about, task))
    return [
        {**about, "metric": metric, "cell": {**vars(estimate), "errors": result.errors, "total": result.total}}
        for about, result in named
        for metric, estimate in result.metrics.items()
    ]
