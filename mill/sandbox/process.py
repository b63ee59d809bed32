"""The process of a sandbox, which runs programs one after another (see runner.py for what is inside)."""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from mill.api.errors import RunError
from mill.sandbox import runner
from mill.sandbox.isolation import Sandbox

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
        self._process = subprocess.Popen(
            sandbox.command(self._label, preload),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=self._folder.name if self._folder else "/",
            env=sandbox.environment,
            start_new_session=True,
        )

    def __enter__(self) -> SandboxRunner:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._kill()
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()
        if self._folder is not None:
            self._folder.cleanup()

    def run(self, source: str, timeout: float, most_output: int = 0) -> Execution:
        """Run a program, with up to so many bytes of what it prints. If the sandbox cannot start it, that is an error of
        this machine, not of the program."""
        program = source.encode("utf-8", "surrogatepass")
        header = round(1000 * timeout).to_bytes(4, "big") + most_output.to_bytes(4, "big") + len(program).to_bytes(8, "big")
        deadline = time.monotonic() + timeout + 2 * runner.START_S
        head = self._exchange(header + program, 9, deadline)
        error, output = (self._text(int.from_bytes(part, "big"), deadline) for part in (head[1:5], head[5:]))
        if head[:1] not in _OUTCOMES:
            raise RunError(f"a sandbox ({self._sandbox.name}) failed: {error or self._complaint()}")
        return Execution(_OUTCOMES[head[:1]], error.strip(), output)

    def _text(self, length: int, deadline: float) -> str:
        return self._exchange(b"", length, deadline).decode("utf-8", "replace")

    def _exchange(self, given: bytes, length: int, deadline: float) -> bytes:
        """Write `given` and read so many bytes; fewer where the process ends or the deadline passes."""
        stdin, stdout, received = self._process.stdin, self._process.stdout, b""
        assert stdin is not None and stdout is not None
        os.set_blocking(stdin.fileno(), False)
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            if given:
                selector.register(stdin, selectors.EVENT_WRITE)
            while len(received) < length and (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    if key.fileobj is stdout:
                        part = os.read(stdout.fileno(), length - len(received))
                        if not part:
                            return received
                        received += part
                        continue
                    try:
                        given = given[os.write(stdin.fileno(), given) :]
                    except BrokenPipeError:
                        given = b""
                    if not given:
                        selector.unregister(stdin)
        return received

    def _complaint(self) -> str:
        """The last line that the sandbox itself wrote."""
        self._kill()
        assert self._process.stderr is not None
        lines = self._process.stderr.read().decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:300] if lines else f"exit code {self._process.returncode}"

    def _kill(self) -> None:
        """End the sandbox and everything in it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._sandbox.end(self._label)
