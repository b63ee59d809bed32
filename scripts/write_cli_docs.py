"""Write docs/cli.md from the commands' own --help, the arguments of backends in docs/models.md and the targets in
docs/export.md from their descriptions. Tests hold the files against them.

python scripts/write_cli_docs.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from mill.api.backend import Backend
from mill.cli.main import COMMANDS, cli
from mill.export.target import builtin_exporters
from mill.models.spec.backends import builtin_backends
from mill.models.spec.open import described_arguments

DOCS = Path(__file__).parent.parent / "docs"
FILE, MODELS, TARGETS = DOCS / "cli.md", DOCS / "models.md", DOCS / "export.md"
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


def render_models() -> str:
    """docs/models.md with the arguments of every backend."""
    backends = {backend.name: backend for backend in builtin_backends().values()}
    return _between(MODELS, "arguments", "".join(_arguments(*item) for item in backends.items()))


def render_targets() -> str:
    """docs/export.md with the table of targets."""
    rows = []
    for name, exporter in sorted(builtin_exporters().items()):
        names = f"`{name}`, `{name}:{exporter.address}`" if exporter.address else f"`{name}`"
        rows.append(f"| {names} | {exporter.about} | {f'`{exporter.extra}`' if exporter.extra else ''} |\n")
    return _between(TARGETS, "targets", f"| target | what is stored | extra |\n| --- | --- | --- |\n{''.join(rows)}")


def _between(file: Path, name: str, text: str) -> str:
    """A page with a generated part, which is between two comments."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    before, _, rest = file.read_text(encoding="utf-8").partition(begin)
    return before + begin + text + end + rest.partition(end)[2]


def _arguments(name: str, backend: Backend) -> str:
    rows = [
        f"| `{key}` | {f'`{default}`' if default else ''} | {about} |\n" for key, default, about in described_arguments(name)
    ]
    also = f", also named {' and '.join(f'`{alias}`' for alias in backend.aliases)}" if backend.aliases else ""
    head = "| argument | default | meaning |\n| --- | --- | --- |\n"
    return f"\n### `{name}`\n\n{backend.about[0].upper()}{backend.about[1:]}{also}.\n\n{head}{''.join(rows)}"


def _block(title: str, text: str) -> str:
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return f"## {title}\n\n```\n{lines}\n```\n"


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")
    TARGETS.write_text(render_targets(), encoding="utf-8")
    MODELS.write_text(render_models(), encoding="utf-8")
