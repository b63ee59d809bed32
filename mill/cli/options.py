"""Options that commands share, and how their texts become values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from mill.api.errors import SpecError
from mill.models.open import guess
from mill.models.remote_code import forbid_remote_code
from mill.models.spec import split_list

DEFAULT_OUTPUT_DIR = "results"

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def output_dir_option() -> Decorator:
    return click.option(
        "--output_dir", type=click.Path(), default=None, help=f"Where results lie. [default: {DEFAULT_OUTPUT_DIR}]"
    )


def task_paths_option() -> Decorator:
    about = "Python files or folders that register tasks or backends; comma-separated, or given several times."
    return click.option("--task_paths", multiple=True, help=about)


def remote_code_option() -> Decorator:
    """Forbids for the whole process, and for those that it starts."""

    def forbid(ctx: click.Context, parameter: click.Parameter, given: bool) -> None:
        if given:
            forbid_remote_code()

    about = "Never run Python code that comes with a model."
    return click.option("--no_remote_code", is_flag=True, expose_value=False, callback=forbid, help=about)


def base_url_option() -> Decorator:
    about = "Address of the server, for models that name none; a bare model name is then one of an OpenAI-compatible server."
    return click.option("--base_url", "--base-url", "base_url", default=None, help=about)


def chosen_output_dir(ctx: click.Context, given: str | None) -> Path:
    """Given to the command, before it, or the default."""
    return Path(given or (ctx.obj or {}).get("output_dir") or DEFAULT_OUTPUT_DIR)


def split_paths(given: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(path for part in given for path in split_list(part))


def parse_pairs(text: str | Mapping[str, Any] | None, option: str) -> dict[str, Any]:
    """`key=value,key=value` as typed values; a value that repeats its key, or a quoted one, may hold anything."""
    if not text:
        return {}
    if isinstance(text, Mapping):
        return dict(text)
    found: dict[str, Any] = {}
    for part in split_list(text):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            raise SpecError(f"{option}: {part!r} is not key=value")
        found[name.strip().replace("-", "_")] = _value(value.strip())
    return found


def _value(text: str) -> Any:
    if len(text) > 1 and text[0] in "\"'" and text[-1] == text[0]:
        return text[1:-1].encode().decode("unicode_escape") if text.isascii() else text[1:-1]
    return guess(text)
