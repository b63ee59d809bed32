"""Click options made from the definitions in `mill.options`, and the types of their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from mill.api.errors import SpecError
from mill.options.definitions import DEFAULT_OUTPUT_DIR, EvalOptions
from mill.options.option import Option, one_call, options_of
from mill.report.tables import MARKDOWN, PRINTED, REMOVED
from mill.support.files import check_path

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
    Choice = click.Choice[str]
else:  # not generic in older versions of click
    ParamType = click.ParamType
    Choice = click.Choice

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class OptionType(ParamType):
    """The type of an option: what is typed becomes a checked value."""

    def __init__(self, option: Option) -> None:
        self.option = option
        self.name = option.metavar.lower()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        where = param.human_readable_name if isinstance(param, click.Argument) else f"--{self.option.name}"
        return self.option.read_text(value, where)


def option(name: str, kind: type[msgspec.Struct] = EvalOptions, *, help: str = "", default: bool | None = None) -> Decorator:
    """The click option of a defined option. Its value is None if it is not given: the Struct has the defaults. `default` is
    for commands whose default differs."""
    defined = options_of(kind)[name]
    if defined.hints.positional:
        return click.argument(name, required=False)
    names = [f"--{spelling}" for spelling in defined.names]
    if defined.hints.off:
        names[0] += f"/--{defined.hints.off}"
    arguments: dict[str, Any] = {"help": help or defined.help}
    if defined.is_flag:
        arguments |= {"is_flag": True, "default": default}
    elif defined.hints.paths:
        arguments |= {"nargs": defined.hints.paths, "type": FilePath(), "default": None}
    else:
        arguments |= {"type": OptionType(defined), "metavar": defined.metavar, "default": None}
        if name == "task_paths":
            arguments |= {"multiple": True}
    if defined.default is msgspec.NODEFAULT:
        arguments |= {"required": True}
    return click.option(*names, name, **arguments)


def argument(name: str) -> Decorator:
    """An argument that a run file can give as well."""
    return click.argument(name, required=False, type=OptionType(options_of(EvalOptions)[name]))


def options(names: Iterable[str], kind: type[msgspec.Struct] = EvalOptions) -> Decorator:
    """Several options, in the order in which --help shows them."""
    return with_options([option(name, kind) for name in names])


def with_options(decorators: Sequence[Decorator]) -> Decorator:
    """A decorator that adds options in the order in which --help shows them."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


def given_options(ctx: click.Context, values: Mapping[str, Any], kind: type[msgspec.Struct]) -> dict[str, Any]:
    """The options that the command line gives, by name; what they allow holds until the command ends. --output_dir may come
    before the command, too."""
    given = {name: value for name, value in values.items() if value not in (None, ()) and name in options_of(kind)}
    if "task_paths" in given:
        given["task_paths"] = split_paths(given["task_paths"])
    ctx.with_resource(one_call(given))
    before = (ctx.obj or {}).get("output_dir")
    return {"output_dir": before, **given} if before else given


def chosen_output_dir(ctx: click.Context, given: str | None) -> Path:
    """Given to the command, before it, or the default."""
    return Path(given or (ctx.obj or {}).get("output_dir") or DEFAULT_OUTPUT_DIR)


def split_paths(given: Iterable[list[str]]) -> list[str]:
    """The paths of --task_paths, which may be given several times."""
    return [path for part in given for path in part]


class TableFormat(Choice):
    """A format of a table or report; `markdown` is another name of md."""

    def __init__(self, formats: Sequence[str] = PRINTED) -> None:
        super().__init__(formats)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in REMOVED and value not in self.choices:
            raise SpecError(f"--format {value} was removed: {REMOVED[value]}")
        return super().convert(MARKDOWN if value == "markdown" else value, param, ctx)


class FilePath(click.Path):
    """A path that the file system accepts: not too long, and without a NUL."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = super().convert(value, param, ctx)
        check_path(str(path))
        return path
