"""The types of options whose values click's own types do not check well enough, and what each may be in a run file.

An option's type is its schema, on the command line and in the file of --config alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from mill.api.errors import SpecError
from mill.api.files import check_path
from mill.models.spec.open import guess
from mill.models.spec.parse import split_list
from mill.runs.plan import parse_limit

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType  # which older versions of click cannot be asked for by type

AUTO = "auto"
_AS_TEXT = ("until", "stop")  # stop strings, whatever they look like


class Real(click.FloatRange):
    """A finite number, at least `min`: `nan` and `inf` are floats that no range of click's refuses."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return float(number)


class FilePath(click.Path):
    """A path that a file system can have: none that is too long, or holds a NUL."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        check_path(str(found))
        return found


class Limit(ParamType):
    """A count or a fraction."""

    name = "text"
    in_file = (int, float, str)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | float | None:
        return parse_limit(value)


class BatchSize(ParamType):
    """A count of at least 1, or `auto`."""

    name = "text"
    in_file = (int, str)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if value == AUTO:
            return AUTO
        try:
            size = int(value)
        except (ValueError, OverflowError):
            size = 0
        if size < 1:
            raise SpecError(f"--batch_size {value}: give a count of at least 1, or auto")
        return size


class Texts(ParamType):
    """A comma-separated text or, in a run file, a list of texts; commas inside brackets belong to a spec."""

    name = "text"
    in_file = (str, list)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        if isinstance(value, str):
            return split_list(value)
        if not all(isinstance(part, str) and part.strip() for part in value):
            self.fail(f"must be a text or a list of texts, not {value!r}", param, ctx)
        return list(value)


class Pairs(ParamType):
    """`key=value,key=value`, or a mapping in a run file."""

    name = "text"
    in_file = (str, dict)

    def __init__(self, option: str) -> None:
        self.option = option

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        return parse_pairs(value, self.option)


def parse_pairs(text: str | Mapping[Any, Any] | None, option: str) -> dict[str, Any]:
    """`key=value,key=value` as typed values. A quoted value may hold anything; stop strings may be a list: until=[a,b]."""
    if not text:
        return {}
    if isinstance(text, Mapping):
        for name in text:
            if not isinstance(name, str):
                raise SpecError(f"{option}: {name!r} is not the name of an option")
        return dict(text)
    found: dict[str, Any] = {}
    for part in split_list(text):
        name, equals, value = part.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise SpecError(f"{option}: {part!r} is not key=value")
        if name in found:
            raise SpecError(f"{option}: {name} is given twice")
        found[name] = _stop_strings(value.strip(), option) if name in _AS_TEXT else _value(value.strip(), option)
    return found


def _stop_strings(text: str, option: str) -> str | list[str]:
    if text.startswith("[") and text.endswith("]"):
        return [_unquoted(part, option) for part in split_list(text[1:-1], quoted=True)]
    return _unquoted(text, option)


def _value(text: str, option: str) -> Any:
    plain = _unquoted(text, option)
    return guess(text) if plain == text else plain


def _unquoted(text: str, option: str) -> str:
    """A quoted text without its quotes, its escapes read; any other as it is."""
    if len(text) < 2 or text[0] not in "\"'" or text[-1] != text[0]:
        return text
    try:
        return text[1:-1].encode().decode("unicode_escape") if text.isascii() else text[1:-1]
    except ValueError as error:
        raise SpecError(f"{option}: {text} holds an escape that cannot be read") from error
