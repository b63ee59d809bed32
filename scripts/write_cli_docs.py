"""Write docs/cli.md from the commands' own --help. A test holds the file against them.

python scripts/write_cli_docs.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mill.cli.main import COMMANDS, cli

FILE = Path(__file__).parent.parent / "docs" / "cli.md"
WIDTH = 100


def render() -> str:
    """The help of mill and of each of its commands, at a fixed width."""
    shape: dict[str, Any] = {"max_content_width": WIDTH, "terminal_width": WIDTH}
    context = cli.make_context("mill", [], resilient_parsing=True, **{**cli.context_settings, **shape})
    parts = ["# The command line\n", "Options may be typed with `_` or with `-`.\n", _block("mill", cli.get_help(context))]
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context, **shape)
        parts.append(_block(f"mill {name}", command.get_help(inner)))
    return "\n".join(parts)


def _block(title: str, text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return f"## {title}\n\n```\n{lines}\n```\n"


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")
