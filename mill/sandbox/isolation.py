"""What a sandbox is: how an interpreter is started in it, and within which limits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from mill.api.errors import RunError

RUNNER = Path(__file__).with_name("runner.py")
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
UNPRIVILEGED = "65534"


@dataclass(frozen=True)
class Limits:
    """What a program may use, besides its time. 0 is no limit."""

    memory: int = 2**32
    """Bytes of address space of each process; a solution of MBPP+ needs half of it."""
    file_size: int = 2**24
    processes: int = 16
    """With the few of the sandbox itself."""
    files: int = 4096
    """Files of each of the two folders that it may write to, where the sandbox mounts these."""
    folder_size: int = 2**26
    """Bytes of all files together in each of them."""


class Sandbox(ABC):
    """One way to start interpreters apart from this machine."""

    name: str
    isolates: bool = True
    reusable: bool = False
    """Whether programs that run one after another in the same sandbox are isolated from each other."""
    limits: Limits = Limits()
    environment: Mapping[str, str] | None = ENVIRONMENT
    """Of the process that is started here; None is this one's."""
    modules: str = ""
    """The folder, as programs see it, of modules beside the standard library."""

    @property
    def label(self) -> str:
        """The sandbox with what it depends on, for the manifest."""
        return self.name

    @cached_property
    def problem(self) -> str:
        """Why it cannot be used on this machine and what would help, in one line; empty where it can."""
        return ""

    @abstractmethod
    def interpreter(self, label: str) -> list[str]:
        """The command that starts an interpreter; `label` names this one."""

    def command(self, label: str, preload: Sequence[str] = ()) -> list[str]:
        """The command that starts an interpreter which waits for programs, with some modules imported."""
        if self.problem:
            raise RunError(self.problem)
        most = self.limits
        numbers = (most.memory, most.file_size, most.processes, most.files, most.folder_size)
        return [
            *self.interpreter(label),
            *("-c", RUNNER.read_text(encoding="utf-8")),
            *map(str, numbers),
            self.modules,
            *preload,
        ]

    def end(self, label: str) -> None:
        """End what is left of an interpreter whose process here was killed."""
        return
