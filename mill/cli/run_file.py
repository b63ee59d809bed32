"""The file of `--config`: a whole run in YAML, with the names of the command line's options and held to their types."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from mill.api.errors import MillError, SpecError, UnknownName

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
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(f"cannot read the run file {path}: {getattr(error, 'strerror', None) or error}") from error
    except RecursionError as error:
        raise SpecError(f"the run file {path} is nested too deep") from error
    except yaml.YAMLError as error:
        raise SpecError(f"the run file {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise SpecError(f"the run file {path} is not a mapping of options")
    return found


def _checked(value: Any, parameter: click.Parameter, where: str) -> Any:
    """First the type that YAML gives, since "no" is a text and no truth value; then the option's own range."""
    kinds = _kinds(parameter)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise SpecError(f"{where} must be {' or '.join(kind.__name__ for kind in kinds)}, not {_shown(value)}")
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
