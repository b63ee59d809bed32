"""Task files instead of task names: `mill eval MODEL my_task.py`."""

from __future__ import annotations

from collections.abc import Iterable

from mill.api.errors import DataError
from mill.api.files import import_file
from mill.api.registry import tasks


def expand_task_files(names: Iterable[str]) -> list[str]:
    """The same names, with every Python file replaced by the tasks that it registers."""
    expanded: list[str] = []
    for name in names:
        expanded += _registered(name) if name.endswith(".py") and name not in tasks else [name]
    return expanded


def _registered(file: str) -> list[str]:
    registered = tasks.defined_in(import_file(file, "task file").__name__)
    if not registered:
        raise DataError(f"the task file {file} registers no task: add @register_task(...)")
    return registered
