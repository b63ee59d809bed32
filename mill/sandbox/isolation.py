"""What a sandbox is, how an interpreter is started in it, and the two without bubblewrap: a container, and none."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

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
    """With those of the sandbox itself."""
    folder_size: int = 2**26
    """Bytes of all files together in each of the folders that it may write to, where the sandbox mounts these."""


class Sandbox(ABC):
    """One way to start interpreters apart from this machine, one for each program."""

    name: str
    isolates: bool = True
    limits: Limits = Limits()
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
    def start(self, label: str, arguments: Sequence[str], folder: str) -> subprocess.Popen[bytes]:
        """Start an interpreter with these arguments; `label` names this one."""

    def end(self, label: str) -> None:
        """End what is left of an interpreter whose process here was killed."""
        return

    def arguments(self, preload: Sequence[str] = ()) -> list[str]:
        """Those of an interpreter that waits for a program, with some modules imported."""
        numbers = (self.limits.memory, self.limits.file_size, self.limits.processes)
        return ["-c", RUNNER.read_text(encoding="utf-8"), *map(str, numbers), self.modules, *preload]


def popen(
    command: Sequence[str], folder: str, environment: Mapping[str, str] | None, files: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """A process with pipes, which is the first of its own group. Without an environment it has that of this process."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        bufsize=0,
        cwd=folder,
        env=environment,
        pass_fds=files,
        start_new_session=True,
    )


class Unisolated(Sandbox):
    """A program can read, write and send what the user can."""

    name = "none"
    isolates = False
    # Processes are counted for the user, not for the program; macOS cannot limit the address space.
    limits = Limits(memory=0 if sys.platform == "darwin" else Limits.memory, processes=0)

    def start(self, label: str, arguments: Sequence[str], folder: str) -> subprocess.Popen[bytes]:
        return popen([sys.executable, "-I", *arguments], folder, {**ENVIRONMENT, "MILL_PROGRAM": label})

    def end(self, label: str) -> None:
        """Processes with a session of their own have left the group; on Linux their environment shows whose they are."""
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if label.encode() in (process / "environ").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)


DEFAULT_IMAGE = "python:3.11-slim"
_ENGINES = ("docker", "podman")
_CALL_S = 60


class Container(Sandbox):
    """Docker or Podman. The engine limits memory and processes; the image's own modules can be imported."""

    name = "docker"
    limits = Limits(processes=0)

    def __init__(self, image: str = DEFAULT_IMAGE) -> None:
        self.image = image

    @property
    def label(self) -> str:
        return f"{self._engine or self.name} {self.image}"

    @cached_property
    def _engine(self) -> str:
        """The first engine that answers."""
        return next((name for name in _ENGINES if shutil.which(name) and _call(name, "ps", "-q")), "")

    @cached_property
    def problem(self) -> str:
        if not self._engine:
            return "neither docker nor podman answers: start a daemon, or leave out --sandbox docker"
        if not _call(self._engine, "image", "inspect", self.image):
            return f"{self._engine} has no image {self.image}: {self._engine} pull {self.image}"
        return ""

    def start(self, label: str, arguments: Sequence[str], folder: str) -> subprocess.Popen[bytes]:
        most = self.limits
        command = [
            *(self._engine, "run", "--rm", "--interactive", "--pull", "never", "--name", label),
            *("--network", "none", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *("--user", UNPRIVILEGED, "--memory", str(most.memory), "--memory-swap", str(most.memory)),
            *("--pids-limit", str(Limits().processes), "--tmpfs", f"/tmp:size={most.folder_size},mode=1777"),
            *("--workdir", "/tmp", *(word for pair in ENVIRONMENT.items() for word in ("--env", "=".join(pair)))),
            *("--entrypoint", "python3", self.image, "-I", *arguments),
        ]
        return popen(command, folder, None)  # the engine's client may need the environment; the container gets its own

    def end(self, label: str) -> None:
        _call(self._engine, "rm", "--force", label)  # the engine's client was killed, not the container


def _call(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=_CALL_S, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
