"""`mill new task|backend|metric NAME`: a starting file and its test."""

from __future__ import annotations

import importlib.util
import keyword
import re
from pathlib import Path

import click

from mill.api.errors import SpecError
from mill.api.registry import Registry, metrics, models, tasks
from mill.cli.templates import TEMPLATES
from mill.models.spec.backends import backends
from mill.models.spec.configs import packaged_configs
from mill.options.option import shown
from mill.support.files import write_atomically
from mill.support.terminal import echo
from mill.tasks.load import load_builtin

MAX_NAME = 64
NEXT = {
    "task": "mill eval MODEL {file}",
    "backend": "mill conform {file}; mill eval {file} gsm8k --limit 3",
    "metric": "mill eval MODEL TASK --task_paths {file},TASK.py",
}


@click.command("new")
@click.argument("what", metavar="task|backend|metric", type=click.Choice(list(TEMPLATES)))
@click.argument("name")
def command(what: str, name: str) -> int:
    """Write NAME.py, a task, backend or metric that runs as it is, and test_NAME.py into the current folder.

    \b
    Examples:
      mill new task my_task && mill eval org/name my_task.py && pytest test_my_task.py
      mill new backend my_engine && mill conform my_engine.py
      mill new metric my_metric
    """
    _check_name(what, name)
    files = [Path(f"{name}.py"), Path(f"test_{name}.py")]
    for file in files:
        if file.exists() or file.is_symlink():
            raise SpecError(f"{file} exists: choose another name, or move it away")
    title = "".join(part.capitalize() for part in name.split("_"))
    for file, template in zip(files, TEMPLATES[what], strict=True):
        write_atomically(file, re.sub(r"(?<![A-Z])NAME\b", name, re.sub(r"\bCLASS\b", title, template)))
        echo(f"written: {file}")
    echo(f"try: {NEXT[what].format(file=files[0])}; pytest {files[1]}")
    return 0


def _check_name(what: str, name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name) or name.startswith("test_"):
        raise SpecError(f"{name!r}: a name has lower-case letters, digits and _, such as my_{what}")
    if len(name) > MAX_NAME:
        raise SpecError(f"{shown(name)}: a name has at most {MAX_NAME} characters")
    if name == "conftest":
        raise SpecError("conftest.py is a file of pytest: choose another name")
    load_builtin()
    registries: dict[str, Registry[object]] = {"task": tasks, "backend": models, "metric": metrics}
    # A spec may be a prefix and a colon, as in gguf:name; a backend of that name would hide it.
    taken = {*packaged_configs(), *(part for backend in backends() for part in (*backend.names, *backend.prefixes))}
    names = {spelling for other in taken for spelling in (other, other.replace("-", "_"))} if what == "backend" else set()
    if name in registries[what] or name in names:
        raise SpecError(f"there is a {what} {name} already: choose another name")
    if importlib.util.find_spec(name) is not None and not Path(f"{name}.py").exists():
        raise SpecError(f"{name} is a Python module, which {name}.py would hide: choose another name")
