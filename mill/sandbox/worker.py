"""A child process that answers: in each direction a length and so many bytes."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence

LENGTH_BYTES = 8


class WorkerProcess:
    """Answers one call at a time. It ends when it is killed, or with this process, whose end closes its input."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str] | None, cwd: str | None = None) -> None:
        self._errors, self._complaint = tempfile.TemporaryFile(), ""
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            bufsize=0,
            cwd=cwd,
            env=env,
            start_new_session=True,
        )

    def call(self, given: bytes, timeout: float) -> bytes:
        """The answer. Raises TimeoutError where there is none in time, and EOFError where the process ended; it is then to
        be killed."""
        deadline = time.monotonic() + timeout
        head = self._exchange(len(given).to_bytes(LENGTH_BYTES, "big") + given, LENGTH_BYTES, deadline)
        return self._exchange(b"", int.from_bytes(head, "big"), deadline)

    def kill(self) -> str:
        """End it with all processes of its group. Returns the last line of its standard error, or its exit code."""
        if not self._errors.closed:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._complaint = f"exit code {self._process.wait()}"
            with self._errors as errors:
                errors.seek(0)
                lines = errors.read().decode("utf-8", "replace").strip().splitlines()
            self._complaint = lines[-1][:300] if lines else self._complaint
            for pipe in (self._process.stdin, self._process.stdout):
                with contextlib.suppress(OSError):
                    pipe.close()  # type: ignore[union-attr]
        return self._complaint

    def _exchange(self, given: bytes, length: int, deadline: float) -> bytes:
        """Write `given` and read so many bytes."""
        stdin, stdout, received = self._process.stdin, self._process.stdout, b""
        assert stdin is not None and stdout is not None
        os.set_blocking(stdin.fileno(), False)
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            if given:
                selector.register(stdin, selectors.EVENT_WRITE)
            while len(received) < length:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise TimeoutError
                for key, _ in ready:
                    if key.fileobj is stdout:
                        part = os.read(stdout.fileno(), length - len(received))
                        if not part:
                            raise EOFError
                        received += part
                        continue
                    try:
                        given = given[os.write(stdin.fileno(), given) :]
                    except BrokenPipeError:
                        given = b""
                    if not given:
                        selector.unregister(stdin)
        return received
