"""Types of command-line values that click's own types do not check well enough."""

from __future__ import annotations

import math
from typing import Any

import click

from mill.api.files import check_path


class FiniteFloat(click.FloatRange):
    """A finite number of at least `min`: click accepts `nan` and `inf` in every range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return float(number)


class FilePath(click.Path):
    """A path that the file system accepts: not too long, and without a NUL."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = super().convert(value, param, ctx)
        check_path(str(path))
        return path
