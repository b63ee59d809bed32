"""Tables on standard output: fitted to a terminal, as long as their cells in a pipe or file; escapes of Markdown."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Sequence
from typing import Any

from mill.support.terminal import echo_data, one_line, printable


def escape(text: str) -> str:
    """Names and messages, so that nothing in them is Markdown or HTML."""
    text = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{char}" if char in "\\|*_`[]#!~" else char for char in text)


PLAIN_WIDTH = 1_000_000  # columns without a terminal: no name or number is wrapped or cut
LONGEST_SHOWN = 200  # characters of a name
LARGEST_DRAWN = 1e200
_NARROWEST = 8  # characters of a text column
_HEAD = 18  # characters of the head of a number column, before it is folded


def console(*, stderr: bool = False) -> Any:
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

    stream = sys.stderr if stderr else sys.stdout
    return PlainConsole(stderr=stderr, width=None if stream.isatty() else PLAIN_WIDTH, highlight=False, emoji=False)


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
