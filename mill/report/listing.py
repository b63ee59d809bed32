"""Rows in every format: a table for people, CSV, JSON and Parquet for programs, Markdown and HTML for documents."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mill.api.errors import SpecError
from mill.report.tables import escape, print_table
from mill.support.files import json_text, write_atomically
from mill.support.terminal import echo, echo_data, printable, utf8

TABLE, CSV, JSON, MARKDOWN, PARQUET, HTML = "table", "csv", "json", "md", "parquet", "html"
PRINTED = (TABLE, CSV, JSON, MARKDOWN, HTML)
FORMATS = (TABLE, CSV, JSON, MARKDOWN, PARQUET, HTML)
ENDINGS = {
    ".csv": CSV,
    ".json": JSON,
    ".md": MARKDOWN,
    ".markdown": MARKDOWN,
    ".parquet": PARQUET,
    ".html": HTML,
}
LATEX = 'write CSV, and pandas.read_csv("scores.csv").to_latex() makes a table of it'
PAGE_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'">
"""
PAGE_STYLE = """
:root { color-scheme: light dark; }
body { font: 14px/1.5 system-ui, sans-serif; margin: 24px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 12px; text-align: left; overflow-wrap: anywhere; }
tr > * { border-bottom: 1px solid light-dark(#e4e5e8, #33363c); }
thead th { vertical-align: bottom; border-bottom: 2px solid light-dark(#747881, #878b94); max-width: 240px; }
td { white-space: nowrap; }
.number { text-align: right; }
p { color: light-dark(#5c5f66, #a9adb6); max-width: 90ch; }
"""
STAR = " *"  # marks a bold cell where nothing is bold
_INSIDE_WORD = re.compile(r"(?<=\w)\\_(?=\w)")


@dataclass(frozen=True)
class Listing:
    """`rows` are the data of CSV, JSON and Parquet, `cells` what people read, in the columns `shown`."""

    rows: Sequence[Mapping[str, Any]]
    columns: Sequence[str]
    shown: Sequence[str]
    cells: Sequence[Sequence[str]]
    numbers: Sequence[str] = ()
    group: Sequence[str] = ()
    """See `print_table`."""
    repeated: int = 0
    """See `print_table`."""
    bold: Collection[tuple[int, int]] = ()
    """Row and column, by number, of cells in bold."""
    notes: Sequence[str] = ()
    """Lines below the table, for people."""
    title: str = "mill"
    """Of the HTML page."""

    def text(self, form: str) -> str:
        """A document in one of the formats but `table` and `parquet`."""
        if form == JSON:
            return json_text([{name: row[name] for name in self.columns} for row in self.rows], indent=2) + "\n"
        if form == HTML:
            return self._page()
        return self._csv() if form == CSV else self._markdown()

    def print(self, form: str) -> None:
        if form == PARQUET:
            raise SpecError("parquet is no text: give --out FILE.parquet")
        if form != TABLE:
            echo_data(self.text(form))
            return
        print_table(
            "", self.shown, self._starred(), numbers=self.numbers, group=self.group, repeated=self.repeated, bold=self.bold
        )
        for note in self.notes:
            echo(note)

    def write(self, file: Path, form: str) -> None:
        write_atomically(file, self._write_parquet if form == PARQUET else self.text(form))

    def _starred(self) -> list[list[str]]:
        """With a star behind bold cells, and blanks behind the others of their columns, so that numbers stay aligned."""
        columns = {column for _, column in self.bold}

        def cell(row: int, column: int, text: str) -> str:
            return text + (STAR if (row, column) in self.bold else " " * len(STAR)) if column in columns else text

        return [[cell(row, column, text) for column, text in enumerate(line)] for row, line in enumerate(self.cells)]

    def _csv(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([_cell(row[name]) for name in self.columns] for row in self.rows)
        return out.getvalue()

    def _markdown(self) -> str:
        ruler = ("---:" if column in self.numbers else "---" for column in self.shown)
        lines = [f"| {' | '.join(map(_escaped, self.shown))} |", f"| {' | '.join(ruler)} |"]
        for number, row in enumerate(self.cells):
            texts = enumerate(map(_escaped, row))
            cells = (f"**{one}**" if one and (number, column) in self.bold else one for column, one in texts)
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join([*lines, *(line for note in self.notes for line in ("", _escaped(note)))]) + "\n"

    def _page(self) -> str:
        """A small page without scripts."""
        kinds = [' class="number"' if column in self.numbers else "" for column in self.shown]
        head = "".join(f"<th{kind}>{_plain(name)}</th>" for name, kind in zip(self.shown, kinds, strict=True))
        rows = []
        for number, row in enumerate(self.cells):
            cells = (f"<b>{_plain(cell)}</b>" if (number, at) in self.bold else _plain(cell) for at, cell in enumerate(row))
            rows.append("".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(cells, kinds, strict=True)))
        body = "\n".join(f"<tr>{row}</tr>" for row in rows)
        table = f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"
        notes = "".join(f"<p>{_plain(note)}</p>" for note in self.notes)
        top = f"{PAGE_HEAD}<title>{_plain(self.title)}</title>\n<style>{PAGE_STYLE}</style></head>"
        return f"{top}\n<body>{table}{notes}</body></html>\n"

    def _write_parquet(self, handle: Any) -> None:
        import pyarrow
        import pyarrow.parquet

        columns = {name: _parquet_column([row[name] for row in self.rows]) for name in self.columns}
        pyarrow.parquet.write_table(pyarrow.table(columns), handle)


def _plain(text: str) -> str:
    """As text of a page, without characters that change how other text is shown."""
    return html.escape(printable(text))


def form_of(out: str | None, form: str) -> str:
    """The format of a file: the given one, else that of its ending, else CSV."""
    ending = Path(out).suffix.lower() if out else ""
    if not out or form != TABLE:
        return form
    if ending == ".tex":
        raise SpecError(f"--out {out}: LaTeX was removed: {LATEX}")
    if ending and ending not in ENDINGS:
        raise SpecError(f"--out {out}: endings are {', '.join(ENDINGS)}, or give --format")
    return ENDINGS.get(ending, CSV)


def write_or_print(listing: Listing, form: str, out: str | None, counted: str) -> None:
    """To the file, with a line that says so, or to the terminal. `counted` are the rows in words."""
    form = form_of(out, form)
    if out:
        listing.write(Path(out), form)
        echo(f"{counted} written to {out}")
    else:
        listing.print(form)


def _cell(value: Any) -> Any:
    """A value in CSV; the items of a list are separated by commas."""
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value


def _escaped(text: str) -> str:
    """Without Markdown and HTML; an underscore inside of a word is none."""
    return _INSIDE_WORD.sub("_", escape(text))


def _parquet_column(values: Sequence[Any]) -> Any:
    """A column of one type: truth values, whole numbers, numbers, else texts. An empty text among numbers is no value."""
    import pyarrow

    known = [value for value in values if value is not None and value != ""]
    if known and all(isinstance(value, (int, float)) for value in known):
        numbers = [None if value == "" else value for value in values]
        if all(isinstance(value, bool) for value in known):
            return pyarrow.array(numbers, pyarrow.bool_())
        whole = all(isinstance(value, int) for value in known)
        return pyarrow.array(numbers, pyarrow.int64() if whole else pyarrow.float64())
    texts = [None if value is None else utf8(str(_cell(value))).decode() for value in values]
    return pyarrow.array(texts, pyarrow.string())
