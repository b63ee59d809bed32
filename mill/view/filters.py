"""Which samples a page shows and in which order: read from the parameters of a URL, turned into SQL."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mill.api.errors import SpecError, UnknownName
from mill.store.sample_row import STATUSES
from mill.view.sample_line import FLAG_BITS, value_column

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

    Words are split where FTS5 splits texts, and quoted, so that none is an operator of its own.
    """
    words = "".join(char if _in_word(char) else " " for char in unicodedata.normalize("NFC", text)).split()
    quoted = [f'"{word}"' for word in words]
    return " ".join([*quoted[:-1], f"{quoted[-1]}*"]) if quoted else ""


def _in_word(char: str) -> bool:
    """Letters, numbers and private characters, as FTS5's tokenizer unicode61 has them."""
    kind = unicodedata.category(char)
    return kind[0] in "LN" or kind == "Co"
