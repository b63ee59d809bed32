"""Options that commands share, and how their texts become values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from mill.cli.values import FilePath, Texts
from mill.cli.values import parse_pairs as parse_pairs
from mill.models.spec.remote_code import forbid_remote_code

DEFAULT_OUTPUT_DIR = "results"

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def output_dir_option() -> Decorator:
    return click.option(
        "--output_dir", type=FilePath(), default=None, help=f"Where results lie. [default: {DEFAULT_OUTPUT_DIR}]"
    )


def task_paths_option() -> Decorator:
    about = "Python files or folders that register tasks or backends; comma-separated, or given several times."
    return click.option("--task_paths", multiple=True, type=Texts(), help=about)


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


def split_paths(given: tuple[list[str], ...]) -> tuple[str, ...]:
    """The paths of --task_paths, however often it was given."""
    return tuple(path for part in given for path in part)
