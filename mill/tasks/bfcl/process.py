"""Processes that run the simulated APIs: one that takes too long is ended, and a new one takes the next job."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from mill.api.errors import DataError


class SimulationPool:
    """As many processes as there are jobs at the same time. They end with this process, whose end closes their input."""

    def __init__(self, sources: Mapping[str, str], timeout: float) -> None:
        self._sources, self.timeout = dict(sources), timeout
        self._idle: queue.LifoQueue[_SimulationProcess] = queue.LifoQueue()

    def run(self, job: Mapping[str, Any]) -> str:
        """The answer to a job; raises TimeoutError, or RuntimeError with what went wrong."""
        try:
            process = self._idle.get_nowait()
        except queue.Empty:
            process = _SimulationProcess(self._sources)
        try:
            answer = process.run(job, self.timeout)
        except BaseException:
            process.end()
            raise
        self._idle.put(process)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return str(answer["answer"])


class _SimulationProcess:
    def __init__(self, sources: Mapping[str, str]) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "mill.tasks.bfcl.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=environment,
        )
        self._received = b""
        self._send(sources)

    def run(self, job: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        self._send(job)
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._received:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"the simulated API took more than {timeout:g} s")
                part = os.read(self._process.stdout.fileno(), 1 << 16)
                if not part:
                    raise RuntimeError("the process of the simulated APIs ended, perhaps for lack of memory")
                self._received += part
        line, _, self._received = self._received.partition(b"\n")
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer

    def _send(self, data: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(data).encode() + b"\n")
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(f"the calls cannot be written as JSON: {error}") from error
        except OSError as error:
            raise RuntimeError("the process of the simulated APIs ended, perhaps for lack of memory") from error

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
