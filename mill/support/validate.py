"""Validates data from outside (files, servers, third-party code) against a type, once, where it comes in.

A type is a dataclass, a `msgspec.Struct`, or anything else that msgspec understands. What does not fit is one line that
names the file or URL and the field. In YAML files repeated keys and aliases are refused.
"""

from __future__ import annotations

import json
import os
import re
import stat
import threading
from collections import Counter
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar, overload

from mill.api.errors import DataError, MillError, SpecError
from mill.support.files import read_bytes

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
        raise error(f"{where} is not valid JSON: {' '.join(str(cause).split())[:200] or type(cause).__name__}") from cause


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


_MAX_BYTES = 16 << 20


def read_yaml(path: str, what: str) -> dict[Any, Any] | None:
    """The mapping in a file; None where the file is empty. `what` names it in messages, such as "run file"."""
    import yaml

    try:
        content = _construct(_read_text(path))
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot read the {what} {path}: {getattr(error, 'strerror', None) or error}") from error
    except RecursionError as error:
        raise SpecError(f"the {what} {path} is nested too deep") from error
    except yaml.YAMLError as error:
        raise SpecError(f"the {what} {path} is not YAML: {_problem(error)}") from None  # a traceback would quote the line
    if content is not None and not isinstance(content, dict):
        raise SpecError(f"the {what} {path} is not a mapping of names to values")
    return content


def _problem(error: Any) -> str:
    """What is wrong, and where. The parser's own message quotes the line, which may have a key."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return " ".join(str(error).split())
    problem = re.sub(r" '(?!<)[^']{3,}'", "", f"{error.problem or error.context}")  # a name, such as that of an alias
    where = f"{problem} (line {mark.line + 1}, column {mark.column + 1})"
    if not error.problem or not error.context or error.context_mark is None:
        return where
    return f"{where} {error.context} (line {error.context_mark.line + 1}, column {error.context_mark.column + 1})"


def _construct(text: str) -> Any:
    """The content of a YAML document. Aliases are refused: with them a small file may become a huge value."""
    import yaml

    if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.SafeLoader)):
        raise ValueError("it has an alias (*name): write the value again instead")
    if (node := yaml.compose(text, yaml.SafeLoader)) is None:
        return None
    _refuse_repeated_keys(node)
    try:
        return yaml.safe_load(text)
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ValueError("a value does not fit its tag, such as !!int, or is no date that exists") from None  # no quote


def _refuse_repeated_keys(node: Any) -> None:
    """For each mapping in a node."""
    if node.id == "scalar":
        return
    if node.id == "mapping":
        keys = Counter((key.tag, key.value) for key, _ in node.value if key.id == "scalar")
        if repeated := [name for (_, name), count in keys.items() if count > 1]:
            raise ValueError(f"{repeated[0]!r} is given twice")
    for child in node.value:
        for part in child if node.id == "mapping" else [child]:
            _refuse_repeated_keys(part)


def _read_text(path: str) -> str:
    """The text of a file, or of a pipe, as a shell gives it for <(command). A device such as /dev/zero never ends."""
    with Path(path).open("rb") as handle:
        mode = os.fstat(handle.fileno()).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
            raise ValueError("it is not a regular file")
        raw = handle.read(_MAX_BYTES + 1)
    if len(raw) > _MAX_BYTES:
        raise ValueError(f"it is larger than {_MAX_BYTES >> 20} MiB")
    return raw.decode("utf-8")
