"""The process of a sandbox, which runs programs one after another (see runner.py for what is inside)."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from mill.api.errors import RunError
from mill.sandbox import runner
from mill.sandbox.isolation import Sandbox
from mill.sandbox.worker import WorkerProcess

PASSED, FAILED, TIMED_OUT = "passed", "failed", "timed out"
_OUTCOMES = {runner.PASSED: PASSED, runner.FAILED: FAILED, runner.TIMED_OUT: TIMED_OUT}


@dataclass(frozen=True)
class Execution:
    """What became of a program: passed, failed with its error, or timed out; and what it printed, where that was wanted."""

    outcome: str
    error: str = ""
    output: str = ""

    @property
    def passed(self) -> bool:
        return self.outcome == PASSED


class SandboxRunner:
    """Used by the thread that made it: bubblewrap ends a sandbox with the thread that started it."""

    def __init__(self, sandbox: Sandbox, preload: Sequence[str] = ()) -> None:
        self._sandbox, self._label = sandbox, f"mill-{secrets.token_hex(8)}"
        self._folder = tempfile.TemporaryDirectory(prefix="mill-") if not sandbox.isolates else None
        command, folder = sandbox.command(self._label, preload), self._folder.name if self._folder else "/"
        self._worker = WorkerProcess(command, sandbox.environment, folder)

    def __enter__(self) -> SandboxRunner:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()
        if self._folder is not None:
            self._folder.cleanup()

    def run(self, source: str, timeout: float, most_output: int = 0) -> Execution:
        """Run a program, with up to so many bytes of what it prints. If the sandbox cannot start it, that is an error of
        this machine, not of the program."""
        program = source.encode("utf-8", "surrogatepass")
        given = round(1000 * timeout).to_bytes(4, "big") + most_output.to_bytes(4, "big") + program
        try:
            answer = self._worker.call(given, timeout + 2 * runner.START_S)
        except (TimeoutError, EOFError):
            raise RunError(f"a sandbox ({self._sandbox.name}) failed: {self._end()}") from None
        end = 5 + int.from_bytes(answer[1:5], "big")
        error, output = (part.decode("utf-8", "replace") for part in (answer[5:end], answer[end:]))
        if answer[:1] not in _OUTCOMES:
            raise RunError(f"a sandbox ({self._sandbox.name}) failed: {error}")
        return Execution(_OUTCOMES[answer[:1]], error.strip(), output)

    def _end(self) -> str:
        """End the sandbox and everything in it."""
        complaint = self._worker.kill()
        self._sandbox.end(self._label)
        return complaint
