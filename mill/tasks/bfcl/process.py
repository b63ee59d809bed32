"""Processes that run the simulated APIs: one that takes too long is ended, and a new one takes the next job."""

from __future__ import annotations

import json
import os
import queue
import sys
from collections.abc import Mapping
from typing import Any

from mill.api.errors import DataError
from mill.sandbox.worker import WorkerProcess

START_S = 60.0  # for a process to start, on a busy machine


class SimulationPool:
    """As many processes as there are jobs at the same time. They end with this process."""

    def __init__(self, sources: Mapping[str, str], timeout: float) -> None:
        self._sources, self.timeout = dict(sources), timeout
        self._idle: queue.LifoQueue[WorkerProcess] = queue.LifoQueue()

    def run(self, job: Mapping[str, Any]) -> str:
        """The answer to a job; raises TimeoutError, or RuntimeError with what went wrong."""
        try:
            worker = self._idle.get_nowait()
        except queue.Empty:
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
            worker = WorkerProcess([sys.executable, "-m", "mill.tasks.bfcl.worker"], environment)
            _call(worker, self._sources, START_S)
        answer = _call(worker, job, self.timeout)
        self._idle.put(worker)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return str(answer["answer"])


def _call(worker: WorkerProcess, given: Mapping[str, Any], timeout: float) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = json.loads(worker.call(json.dumps(given).encode(), timeout))
        return answer
    except BaseException as error:
        worker.kill()
        if isinstance(error, TimeoutError):
            raise TimeoutError(f"the simulated API took more than {timeout:g} s") from error
        if isinstance(error, EOFError):
            raise RuntimeError("the process of the simulated APIs ended, perhaps for lack of memory") from error
        if isinstance(error, (TypeError, ValueError, RecursionError)):
            raise DataError(f"the calls cannot be written as JSON: {error}") from error
        raise
