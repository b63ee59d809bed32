"""Code that a model wrote, which scoring may execute: only where the user confirmed it."""

from __future__ import annotations

from collections.abc import Sequence

from mill.api.errors import SpecError
from mill.api.task import Task

_confirmed = False


def confirm_unsafe_code() -> None:
    global _confirmed
    _confirmed = True


def unsafe_code_confirmed() -> bool:
    return _confirmed


def refuse_unsafe_code(tasks: Sequence[Task]) -> None:
    """Refuse tasks that would execute a model's code without the user's consent."""
    names = [task.name for task in tasks if task.runs_code]
    if names and not _confirmed:
        raise SpecError(f"{names[0]} executes code that the model wrote: --confirm_run_unsafe_code allows it")
