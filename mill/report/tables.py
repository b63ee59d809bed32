"""Tables on standard output: fitted to a terminal, or as long as their cells in a pipe or file."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

from mill.api.printing import one_line, printable

PLAIN_WIDTH = 1_000_000  # columns without a terminal: no name or number is wrapped or cut


def console(*, stderr: bool = False) -> Any:
    """A rich console; without a limit on line length where the output is no terminal."""
    from rich.console import Console

    class PlainConsole(Console):
        """Prints texts as they are: control characters as escapes, and nothing in them is markup."""

        def print(self, *objects: Any, **options: Any) -> None:
            texts = (printable(" ".join(item.splitlines())) if isinstance(item, str) else item for item in objects)
            super().print(*texts, **{**options, "markup": False})

    stream = sys.stderr if stderr else sys.stdout
    return PlainConsole(stderr=stderr, width=None if stream.isatty() else PLAIN_WIDTH, highlight=False, emoji=False)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[str] = ()) -> None:
    """Print rows of plain text; the columns named in `numbers` are aligned on the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        right = column in numbers
        table.add_column(Text(one_line(column)), justify="right" if right else "left", no_wrap=right, overflow="fold")
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    out = console()
    if title:  # a title of the table itself would be wrapped to the columns
        out.print(one_line(title), soft_wrap=True)
    out.print(table)


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


def dash() -> str:
    """Between the ends of an interval; two dots where the encoding has no dash."""
    return "–" if (sys.stdout.encoding or "").lower().startswith("utf") else ".."
