"""No sandbox: programs run as the user, with limits alone."""

from __future__ import annotations

import sys

from mill.sandbox.isolation import Limits, Sandbox


class Unisolated(Sandbox):
    """A program can read, write and send what the user can."""

    name = "none"
    isolates = False
    # Processes are counted for the user, not for the program; macOS cannot limit the address space.
    limits = Limits(memory=0 if sys.platform == "darwin" else Limits.memory, processes=0, files=0)

    def interpreter(self, label: str) -> list[str]:
        return [sys.executable, "-I"]
