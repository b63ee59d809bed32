"""Tables on a terminal: as wide as it is, plain text where there is none."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

from mill.api.printing import one_line, printable

PLAIN_WIDTH = 100


def console(*, stderr: bool = False) -> Any:
    """A rich console; of a fixed width where the output is no terminal, so that logs and pipes look alike."""
    from rich.console import Console

    class PlainConsole(Console):
        """Texts are printed as they are: control characters as escapes, and nothing in them is read as markup."""

        def print(self, *objects: Any, **how: Any) -> None:
            shown = (printable(" ".join(one.splitlines())) if isinstance(one, str) else one for one in objects)
            super().print(*shown, **{**how, "markup": False})

    stream = sys.stderr if stderr else sys.stdout
    return PlainConsole(stderr=stderr, width=None if stream.isatty() else PLAIN_WIDTH, highlight=False, emoji=False)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[str] = ()) -> None:
    """Cells are plain text: nothing in them is read as markup."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(one_line(title)) if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column in columns:
        right = column in numbers
        table.add_column(Text(one_line(column)), justify="right" if right else "left", no_wrap=right, overflow="fold")
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    console().print(table)


def number(value: float | None, digits: int = 4) -> str:
    """A figure as people write it; NaN and infinity by name, a missing one as a dash."""
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
    """Between the ends of an interval; plain where the output knows no other."""
    return "–" if (sys.stdout.encoding or "").lower().startswith("utf") else ".."
