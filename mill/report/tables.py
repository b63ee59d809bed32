"""Tables: on a terminal fitted to it, in a pipe as long as their cells; and rows in every format: CSV, JSON and Parquet for
programs, Markdown for documents."""

from __future__ import annotations

import csv
import io
import math
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mill.api.errors import SpecError
from mill.support.files import json_text, write_atomically
from mill.support.terminal import echo, echo_data, one_line, printable, utf8


def escape(text: str) -> str:
    """Names and messages, so that nothing in them is Markdown or HTML."""
    text = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{char}" if char in "\\|*_`[]#!~" else char for char in text)


def markdown_table(columns: Sequence[str], rows: Iterable[Iterable[str]], numbers: Collection[str] = ()) -> list[str]:
    """The lines of a table. The cells are escaped already; the columns named in `numbers` are aligned on the right."""
    ruler = ("---:" if column in numbers else "---" for column in columns)
    return [f"| {' | '.join(cells)} |" for cells in (columns, ruler, *rows)]


PLAIN_WIDTH = 1_000_000  # columns without a terminal: no name or number is wrapped or cut
LONGEST_SHOWN = 200  # characters of a name
LARGEST_DRAWN = 1e200
_NARROWEST = 8  # characters of a text column
_HEAD = 18  # characters of the head of a number column, before it is folded


def console() -> Any:
    """A rich console; without a limit on line length where the output is no terminal."""
    from rich.console import Console

    class PlainConsole(Console):
        """Prints texts as they are: control characters as escapes, and nothing in them is markup."""

        def print(self, *objects: Any, **options: Any) -> None:
            texts = (printable(" ".join(item.splitlines())) if isinstance(item, str) else item for item in objects)
            super().print(*texts, **{**options, "markup": False})

        def on_broken_pipe(self) -> None:
            """Rich would end the process."""
            raise BrokenPipeError

    return PlainConsole(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False, emoji=False)


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Sequence[str] = (),
    group: Sequence[str] = (),
    repeated: int = 0,
    bold: Collection[tuple[int, int]] = (),
) -> None:
    """Print rows of plain text; the columns named in `numbers` are aligned on the right, cells named in `bold` (row and
    column) are bold.

    Where the table is wider than the terminal, the columns named in `group` become a line above the rows that share them;
    or the table is printed in blocks of columns that fit, each with the first `repeated` columns.
    """
    out = console()
    if title:  # a title of the table itself would be wrapped to the columns
        out.print(one_line(title), soft_wrap=True)
    texts = [[_one_line(cell) for cell in row] for row in rows]
    widths = _widths(columns, texts)
    if repeated and _total(widths) > out.width:
        _print_blocks(out, columns, texts, numbers, repeated, bold)
        return
    if group and _total(widths) > out.width:
        _print_groups(out, columns, texts, numbers, group)
        return
    plain = not sys.stdout.isatty()
    _print_rows(out, _table(columns, numbers, texts, edge=not plain, bold=bold), plain=plain)


def _one_line(cell: str) -> str:
    """With the blanks behind it, which align numbers."""
    return one_line(cell) + " " * (len(cell) - len(cell.rstrip(" ")))


def _table(
    columns: Sequence[str],
    numbers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    edge: bool,
    widths: Sequence[int] = (),
    bold: Collection[tuple[int, int]] = (),
) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=edge)
    for index, column in enumerate(columns):
        right, width = column in numbers, widths[index] if widths else None
        justify: Any = "right" if right else "left"
        whole = right and (width is None or len(column) <= width)
        table.add_column(Text(one_line(column)), justify=justify, no_wrap=whole, overflow="fold", width=width)
    for number, row in enumerate(rows):
        table.add_row(*(Text(cell, "bold" if (number, index) in bold else "") for index, cell in enumerate(row)))
    return table


def _print_rows(out: Any, table: Any, *, plain: bool) -> None:
    """Without a terminal no line ends with blanks."""
    if not plain:
        out.print(table)
        return
    with out.capture() as captured:
        out.print(table)
    echo_data("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def _print_groups(
    out: Any, columns: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[str], group: Sequence[str]
) -> None:
    """One header, and the rows of each group below its line; columns are as wide in all groups."""
    inner = [index for index, column in enumerate(columns) if column not in group]
    names = [columns[index] for index in inner]
    groups: dict[str, list[list[str]]] = {}
    for row in rows:
        head = ", ".join(cell for cell, column in zip(row, columns, strict=True) if column in group and cell)
        groups.setdefault(head, []).append([row[index] for index in inner])
    widths = _widths(names, [row for members in groups.values() for row in members])
    while _total(widths) > out.width:  # texts are folded, the widest first
        widest = max((i for i, name in enumerate(names) if name not in numbers), key=widths.__getitem__, default=None)
        if widest is None or widths[widest] <= _NARROWEST:
            break
        widths[widest] -= 1
    out.print(_table(names, numbers, [], edge=False, widths=widths))
    for head, members in groups.items():
        out.print(head, soft_wrap=True, style="bold")
        table = _table(names, numbers, members, edge=False, widths=widths)
        table.show_header = False
        out.print(table)


def _print_blocks(
    out: Any,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Sequence[str],
    repeated: int,
    bold: Collection[tuple[int, int]],
) -> None:
    """Blocks of as many columns as fit beside the repeated ones, at least one; long heads are folded."""
    widths = [
        min(width, max(_HEAD, *map(len, cells))) if column in numbers else width
        for column, width, cells in zip(columns, _widths(columns, rows), zip(*rows, strict=True), strict=True)
    ]
    first, blocks = list(range(repeated)), list[list[int]]()
    for index in range(repeated, len(columns)):
        block = [*first, *(blocks[-1] if blocks else []), index]
        if blocks and _total([widths[one] for one in block]) <= out.width:
            blocks[-1].append(index)
        else:
            blocks.append([index])
    for block in blocks:
        chosen = [*first, *block]
        marked = {(row, chosen.index(column)) for row, column in bold if column in chosen}
        texts = [[row[index] for index in chosen] for row in rows]
        names, fitted = [columns[index] for index in chosen], [widths[index] for index in chosen]
        out.print(_table(names, numbers, texts, edge=True, widths=fitted, bold=marked))


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    from rich.cells import cell_len

    return [max(map(cell_len, cells)) for cells in zip(columns, *rows, strict=True)]


def _total(widths: Sequence[int]) -> int:
    """The width of a table: its columns, two blanks between them and one at each edge."""
    return sum(widths) + 2 * len(widths)


def drawable(value: float) -> bool:
    """Whether a chart can show a value: not NaN, infinity, or a number whose differences overflow."""
    return abs(value) <= LARGEST_DRAWN


def number(value: float | None, digits: int = 4) -> str:
    """A number for display; NaN and infinity by name, None as a dash."""
    if value is None:
        return "-"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if abs(value) >= 1e6:
        return f"{value:.3e}"
    return f"{value:.{digits}f}" if abs(value) < 1000 else f"{value:,.1f}"


def shown_name(text: str) -> str:
    """A name in a table; a long one is cut in the middle, since names differ at the end. Data formats have all of it."""
    if len(text) <= LONGEST_SHOWN:
        return text
    tail = LONGEST_SHOWN // 3
    return f"{text[: LONGEST_SHOWN - tail - 3]}...{text[-tail:]}"


def dash() -> str:
    """Between the ends of an interval; two dots where the encoding has no dash."""
    return "–" if (sys.stdout.encoding or "").lower().startswith("utf") else ".."


TABLE, CSV, JSON, MARKDOWN, PARQUET = "table", "csv", "json", "md", "parquet"
PRINTED = (TABLE, CSV, JSON, MARKDOWN)
FORMATS = (*PRINTED, PARQUET)
ENDINGS = {
    ".csv": CSV,
    ".json": JSON,
    ".md": MARKDOWN,
    ".markdown": MARKDOWN,
    ".parquet": PARQUET,
}
REMOVED = {
    form: f'write CSV, and pandas.read_csv("scores.csv").{method}() makes a table of it'
    for form, method in {"latex": "to_latex", "tex": "to_latex", "html": "to_html"}.items()
}
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

    def text(self, form: str) -> str:
        """A document in one of the formats but `table` and `parquet`."""
        if form == JSON:
            return json_text([{name: row[name] for name in self.columns} for row in self.rows], indent=2) + "\n"
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
        rows = [list(map(_escaped, row)) for row in self.cells]
        for row, column in self.bold:
            rows[row][column] = f"**{rows[row][column]}**"
        numbers = list(map(_escaped, self.numbers))
        lines = markdown_table(list(map(_escaped, self.shown)), rows, numbers)
        return "\n".join([*lines, *(line for note in self.notes for line in ("", _escaped(note)))]) + "\n"

    def _write_parquet(self, handle: Any) -> None:
        import pyarrow
        import pyarrow.parquet

        columns = {name: _parquet_column([row[name] for row in self.rows]) for name in self.columns}
        pyarrow.parquet.write_table(pyarrow.table(columns), handle)


def form_of(out: str | None, form: str) -> str:
    """The format of a file: the given one, else that of its ending, else CSV."""
    ending = Path(out).suffix.lower() if out else ""
    if not out or form != TABLE:
        return form
    if ending[1:] in REMOVED:
        raise SpecError(f"--out {out}: the format {ending[1:]} was removed: {REMOVED[ending[1:]]}")
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
