"""The sandbox of this process (`--sandbox`), and the tasks that may run code in it."""

from __future__ import annotations

from collections.abc import Sequence

from mill.api.errors import SpecError
from mill.api.task import Task
from mill.api.unsafe_code import unsafe_code_confirmed
from mill.sandbox.bubblewrap import Bubblewrap
from mill.sandbox.container import DEFAULT_IMAGE, Container
from mill.sandbox.isolation import Sandbox
from mill.sandbox.unisolated import Unisolated

NAMES = (Bubblewrap.name, Container.name, Unisolated.name)
UNISOLATED = "programs ran without isolation (--sandbox none)"

_bubblewrap, _unisolated = Bubblewrap(), Unisolated()  # what is known about the machine holds for the process
_chosen: Sandbox = _bubblewrap
_containers: dict[str, Container] = {}


def choose_sandbox(name: str, image: str = DEFAULT_IMAGE) -> None:
    global _chosen
    if name == Container.name:
        _chosen = _containers.setdefault(image, Container(image))
    else:
        _chosen = _unisolated if name == Unisolated.name else _bubblewrap


def chosen_sandbox() -> Sandbox:
    return _chosen


def sandbox_choice() -> tuple[str, str]:
    """What `choose_sandbox` takes, to choose the same in another process."""
    return _chosen.name, _chosen.image if isinstance(_chosen, Container) else DEFAULT_IMAGE


def refuse_unsafe_code(tasks: Sequence[Task]) -> None:
    """Refuse tasks that would execute a model's code without a sandbox that works, or without the user's consent where that
    is needed: for code that nothing isolates, and for tasks whose code does not run in the sandbox alone."""
    running = [task for task in tasks if task.runs_code]
    if not running:
        return
    for task in running:
        if not unsafe_code_confirmed() and not (task.isolates_code and _chosen.isolates):
            raise SpecError(f"{task.name} executes code that the model wrote: --confirm_run_unsafe_code allows it")
    if _chosen.problem:
        around = "--sandbox none --confirm_run_unsafe_code runs it without isolation"
        raise SpecError(f"{running[0].name} executes code that the model wrote, and {_chosen.problem}; {around}")


def sandbox_label(tasks: Sequence[Task]) -> str:
    """The sandbox of a run, for its manifest; empty where no task executes code."""
    return _chosen.label if any(task.runs_code for task in tasks) else ""


def sandbox_warnings(task: Task) -> list[str]:
    """What a reader of a task's score must know about how its programs ran."""
    return [UNISOLATED] if task.runs_code and not _chosen.isolates else []
