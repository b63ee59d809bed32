"""Docker or Podman: each program in a container of its own."""

from __future__ import annotations

import shutil
import subprocess
from functools import cached_property

from mill.sandbox.isolation import ENVIRONMENT, UNPRIVILEGED, Limits, Sandbox

DEFAULT_IMAGE = "python:3.11-slim"
_ENGINES = ("docker", "podman")
_CALL_S = 60


class Container(Sandbox):
    """The engine limits memory and processes; the image's own modules can be imported."""

    name = "docker"
    limits = Limits(processes=0, files=0)
    environment = None  # the engine's client may need it; the container gets its own

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

    def interpreter(self, label: str) -> list[str]:
        most = self.limits
        return [
            *(self._engine, "run", "--rm", "--interactive", "--pull", "never", "--name", label),
            *("--network", "none", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *("--user", UNPRIVILEGED, "--memory", str(most.memory), "--memory-swap", str(most.memory)),
            *("--pids-limit", str(Limits().processes), "--tmpfs", f"/tmp:size={most.folder_size},mode=1777"),
            *("--workdir", "/tmp", *(word for pair in ENVIRONMENT.items() for word in ("--env", "=".join(pair)))),
            *("--entrypoint", "python3", self.image, "-I"),
        ]

    def end(self, label: str) -> None:
        _call(self._engine, "rm", "--force", label)  # the engine's client was killed, not the container


def _call(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=_CALL_S, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
