"""The sandbox of a call (`--sandbox`), and the tasks that may run code in it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence

from mill.api.consent import current_consent
from mill.api.errors import SpecError
from mill.api.task import Task
from mill.sandbox.bubblewrap import Bubblewrap
from mill.sandbox.container import DEFAULT_IMAGE, Container
from mill.sandbox.isolation import Limits, Sandbox


class Unisolated(Sandbox):
    """A program can read, write and send what the user can."""

    name = "none"
    isolates = False
    # Processes are counted for the user, not for the program; macOS cannot limit the address space.
    limits = Limits(memory=0 if sys.platform == "darwin" else Limits.memory, processes=0, files=0)

    def interpreter(self, label: str) -> list[str]:
        return [sys.executable, "-I"]


NAMES = (Bubblewrap.name, Container.name, Unisolated.name)
UNISOLATED = "programs ran without isolation (--sandbox none)"

_bubblewrap, _unisolated = Bubblewrap(), Unisolated()  # what is known about the machine holds for the process


@functools.cache
def _container(image: str) -> Container:
    return Container(image)


def chosen_sandbox() -> Sandbox:
    """That of the call."""
    consent = current_consent()
    if consent.sandbox == Container.name:
        return _container(consent.sandbox_image or DEFAULT_IMAGE)
    return _unisolated if consent.sandbox == Unisolated.name else _bubblewrap


def refuse_unsafe_code(tasks: Sequence[Task]) -> None:
    """Refuse tasks that would execute a model's code without a sandbox that works, or without the user's consent where that
    is needed: for code that nothing isolates, and for tasks whose code does not run in the sandbox alone."""
    running = [task for task in tasks if task.runs_code]
    if not running:
        return
    sandbox = chosen_sandbox()
    for task in running:
        if not current_consent().confirm_run_unsafe_code and not (task.isolates_code and sandbox.isolates):
            raise SpecError(f"{task.name} executes code that the model wrote: --confirm_run_unsafe_code allows it")
    if sandbox.problem:
        around = "--sandbox none --confirm_run_unsafe_code runs it without isolation"
        raise SpecError(f"{running[0].name} executes code that the model wrote, and {sandbox.problem}; {around}")


def sandbox_label(tasks: Sequence[Task]) -> str:
    """The sandbox of a run, for its manifest; empty where no task executes code."""
    return chosen_sandbox().label if any(task.runs_code for task in tasks) else ""


def sandbox_warnings(task: Task) -> list[str]:
    """What a reader of a task's score must know about how its programs ran."""
    return [UNISOLATED] if task.runs_code and not chosen_sandbox().isolates else []
