"""The file of `--config`: a whole run in YAML, with the names of the command line's options and held to their types."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from mill.api.errors import MillError, SpecError, UnknownName

_UNWRITABLE = re.compile("[\x00\ud800-\udfff]")
_MOST_BYTES = 16 << 20
_NOT_HERE = ("config", "help")


def read_run_file(path: str, parameters: Sequence[click.Parameter]) -> dict[str, Any]:
    """The options in a run file, each as its parameter's type has it. What is no option, or not of its type, is refused."""
    found = _read(path)
    known = {parameter.name: parameter for parameter in parameters if parameter.name not in (None, *_NOT_HERE)}
    options: dict[str, Any] = {}
    for given, value in found.items():
        name = str(given).replace("-", "_")
        if name not in known:
            raise UnknownName(f"option in {path}", name, known, hint=f"options are {', '.join(sorted(known))}")
        if name in options:
            raise SpecError(f"{path} gives {name} twice")
        options[name] = None if value is None else _checked(value, known[name], f"{name} in {path}")
    return options


def _read(path: str) -> dict[Any, Any]:
    import yaml

    try:
        found = yaml.safe_load(_text_of(path))
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot read the run file {path}: {getattr(error, 'strerror', None) or error}") from error
    except RecursionError as error:
        raise SpecError(f"the run file {path} is nested too deep") from error
    except yaml.YAMLError as error:
        raise SpecError(f"the run file {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise SpecError(f"the run file {path} is not a mapping of options")
    return found


def _text_of(path: str) -> str:
    """A file's text, or a pipe's, as a shell gives it for <(command); a device such as /dev/zero never ends."""
    with Path(path).open("rb") as handle:
        mode = os.fstat(handle.fileno()).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISFIFO(mode):
            raise ValueError("it is not a regular file")
        raw = handle.read(_MOST_BYTES + 1)
    if len(raw) > _MOST_BYTES:
        raise ValueError(f"it is larger than {_MOST_BYTES >> 20} MiB")
    return raw.decode("utf-8")


def _checked(value: Any, parameter: click.Parameter, where: str) -> Any:
    """First the type that YAML gives, since "no" is a text and no truth value; then the option's own range."""
    kinds = _kinds(parameter)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise SpecError(f"{where} must be {' or '.join(kind.__name__ for kind in kinds)}, not {_shown(value)}")
    if any(_UNWRITABLE.search(text) for text in _texts(value)):
        raise SpecError(f"{where} holds a character that no text has: NUL, or half of a surrogate pair")
    if isinstance(value, str) and not value.strip() and parameter.name != "system_prompt":
        raise SpecError(f"{where} is an empty text: leave it out")
    try:
        return parameter.type.convert(value, parameter, None)
    except click.ClickException as error:
        raise SpecError(f"{where}: {error.message}") from error
    except MillError as error:
        raise SpecError(f"{where}: {error}") from error
    except OverflowError as error:
        raise SpecError(f"{where}: {_shown(value)} is too large") from error


def _texts(value: Any) -> Iterator[str]:
    """The texts of a value: itself, those of a list, or the names, values and lists of a mapping."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        yield from (text for text in value if isinstance(text, str))
    elif isinstance(value, dict):
        for part in (*value, *value.values()):
            yield from (text for text in (part if isinstance(part, list) else [part]) if isinstance(text, str))


def _kinds(parameter: click.Parameter) -> tuple[type, ...]:
    """What an option may be in YAML. An option whose type is not listed here is a text."""
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return (bool,)
    named = getattr(parameter.type, "in_file", None)
    if named is not None:
        return tuple(named)
    if isinstance(parameter.type, click.types.IntParamType):
        return (int,)
    return (int, float) if isinstance(parameter.type, click.types.FloatParamType) else (str,)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
