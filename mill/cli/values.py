"""Types of command-line values that click's own types do not check well enough."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from mill.api.errors import UnknownName
from mill.report.listing import MARKDOWN, PRINTED
from mill.support.files import check_path

if TYPE_CHECKING:
    ClickChoice = click.Choice[str]
else:
    ClickChoice = click.Choice  # not generic in older versions of click


class FiniteFloat(click.FloatRange):
    """A finite number of at least `min`: click accepts `nan` and `inf` in every range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return float(number)


class NamedChoice(ClickChoice):
    """One of a few words; another one is refused with the nearest."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value not in self.choices:
            name = f"argument of {ctx.command_path}" if ctx else "value"
            raise UnknownName(name, str(value), map(str, self.choices), hint=f"it takes {', '.join(map(str, self.choices))}")
        return super().convert(value, param, ctx)


class TableFormat(ClickChoice):
    """A format of `mill.report.listing`; `markdown` is another name of md."""

    def __init__(self, formats: Sequence[str] = PRINTED) -> None:
        super().__init__(formats)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(MARKDOWN if value == "markdown" else value, param, ctx)


class FilePath(click.Path):
    """A path that the file system accepts: not too long, and without a NUL."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = super().convert(value, param, ctx)
        check_path(str(path))
        return path
