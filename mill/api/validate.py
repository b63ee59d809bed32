"""Validates data from outside (files, servers, third-party code) against a type, once, where it comes in.

A type is a dataclass, a `msgspec.Struct`, or anything else that msgspec understands. What does not fit is one line that
names the file or URL and the field.
"""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, overload

from mill.api.errors import DataError, MillError
from mill.api.storage import read_bytes

T = TypeVar("T")

Number = float | Literal["NaN", "Infinity", "-Infinity"]
"""A float as mill writes it to JSON, which has no NaN and no infinity; `float()` reads it."""

_FIELD = re.compile(r"(.*?) - at `([^`]*)`$", re.DOTALL)
_used_kinds: set[Any] = set()
_first_use = threading.Lock()


def parse_json(raw: str | bytes, where: object, error: type[MillError] = DataError, *, strict: bool = False) -> Any:
    """JSON of any shape. Invalid JSON, or JSON nested deeper than Python can read, is refused; with `strict` also NaN and
    Infinity as numbers, which Python reads and writes and JSON does not have."""
    try:
        text = raw if isinstance(raw, str) else raw.decode("utf-8", "surrogatepass")
        return json.loads(text, parse_constant=_refuse_constant) if strict else json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise error(f"{where} is not valid JSON: {_one_line(cause)}") from cause


@overload
def convert(data: Any, kind: type[T], where: object, error: type[MillError] = ...) -> T: ...
@overload
def convert(data: Any, kind: Any, where: object, error: type[MillError] = ...) -> Any: ...
def convert(data: Any, kind: Any, where: object, error: type[MillError] = DataError) -> Any:
    """`data`, as JSON gives it, as an instance of `kind`. Fields that `kind` does not have are ignored."""
    import msgspec

    try:
        return _convert(data, kind)
    except UnicodeEncodeError as cause:  # msgspec's error for a lone surrogate in a name
        raise error(f"{where} is not valid: a name or a number has an invalid character") from cause
    except (msgspec.ValidationError, OverflowError, RecursionError) as cause:
        raise error(f"{where} is not valid: {_field_error(str(cause))}") from cause


def _convert(data: Any, kind: Any) -> Any:
    """The first use of a type is alone: msgspec then stores what it knows of the type, and another thread that reads it half
    done crashes the process."""
    import msgspec

    if kind in _used_kinds:
        return msgspec.convert(data, kind)
    with _first_use:
        try:
            return msgspec.convert(data, kind)
        finally:
            _used_kinds.add(kind)


@overload
def read_file(file: Path, kind: type[T], error: type[MillError] = ...) -> T: ...
@overload
def read_file(file: Path, kind: Any, error: type[MillError] = ...) -> Any: ...
def read_file(file: Path, kind: Any, error: type[MillError] = DataError) -> Any:
    """A JSON file as an instance of `kind`; raises FileNotFoundError where there is none."""
    return convert(parse_json(read_bytes(file, error), file, error), kind, file, error)


def _field_error(message: str) -> str:
    """msgspec's "Expected `int`, got `str` - at `$.a[0].b`" as "a[0].b: expected int, got str"."""
    found = _FIELD.match(message)
    text, path = (found[1], found[2]) if found else (message, "$")
    field = path.removeprefix("$").removeprefix(".")
    text = text.replace("`", "")
    text = text[:1].lower() + text[1:]
    return f"{field}: {text}" if field else text


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
