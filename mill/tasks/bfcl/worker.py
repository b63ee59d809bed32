"""Processes that run the simulated APIs, because calls of a model may take any time and memory.

A worker gets the source code of the APIs as a line of JSON, then one job after another, each with one line as its answer.
One that takes too long is ended, and a new one takes the next job.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from mill.api.errors import DataError
from mill.tasks.bfcl.simulation import ApiCode, expected_call

START_S = 60.0  # for a process to start, on a busy machine
MOST_MEMORY = 2 << 30  # bytes

Call = tuple[str, Mapping[str, Any]]


def last_result(code: ApiCode, doc: Mapping[str, Any], long_context: bool, calls: Sequence[Call]) -> str:
    """The result of the last call, on new instances that the calls before have changed."""
    simulation = code.namespace().start(doc, long_context=long_context)
    return [simulation.call(name, (), named) for name, named in calls][-1]


def first_difference(
    code: ApiCode, doc: Mapping[str, Any], long_context: bool, turns: Sequence[Sequence[Call] | None]
) -> str:
    """Why the calls of the turns are not as expected; empty where they are. A turn is None where the model called nothing.

    Calls of a turn without expected ones are executed and not judged, as on the leaderboard.
    """
    namespace = code.namespace()
    own, wanted = (namespace.start(doc, long_context=long_context) for _ in range(2))
    results: list[str] = []
    for number, (turn, expected) in enumerate(zip(turns, doc["ground_truth"], strict=True), 1):
        results += [own.call(name, (), named) for name, named in turn or ()]
        needed = [wanted.call(*expected_call(text)) for text in expected]
        if not needed:
            continue
        if turn is None:
            return f"no call in turn {number}"
        if different := own.difference(wanted):
            return f"{different} is not as expected after turn {number}"
        if missing := _missing(needed, results):
            return f"no call up to turn {number} gave {missing[0][:200]}"
    return ""


def _missing(needed: Sequence[str], results: Sequence[str]) -> list[str]:
    """The expected results that are not among those of all calls so far, each of which counts once."""
    left = list(results)
    missing = []
    for result in needed:
        if result in left:
            left.remove(result)
        else:
            missing.append(result)
    return missing


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = MOST_MEMORY if hard == resource.RLIM_INFINITY else min(MOST_MEMORY, hard)
    with contextlib.suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


class SimulationPool:
    """As many processes as there are jobs at the same time. They end with this process, which closes their input."""

    def __init__(self, sources: Mapping[str, str], timeout: float) -> None:
        self._sources, self.timeout = dict(sources), timeout
        self._idle: queue.LifoQueue[subprocess.Popen[str]] = queue.LifoQueue()

    def run(self, job: Mapping[str, Any]) -> str:
        """The answer to a job; raises TimeoutError, or RuntimeError with what went wrong."""
        try:
            given = json.dumps(job)
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(f"the calls cannot be written as JSON: {error}") from error
        try:
            worker = self._idle.get_nowait()
        except queue.Empty:
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
            command, pipe = [sys.executable, "-m", "mill.tasks.bfcl.worker"], subprocess.PIPE
            nowhere = subprocess.DEVNULL
            worker = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere, env=environment, text=True)
            _call(worker, json.dumps(self._sources), START_S)
        answer = _call(worker, given, self.timeout)
        self._idle.put(worker)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return str(answer["answer"])


def _call(worker: subprocess.Popen[str], given: str, timeout: float) -> dict[str, Any]:
    assert worker.stdin is not None and worker.stdout is not None
    answer, started, timer = "", time.monotonic(), threading.Timer(timeout, worker.kill)
    timer.start()
    try:
        with contextlib.suppress(BrokenPipeError):
            worker.stdin.write(given + "\n")
            worker.stdin.flush()
            answer = worker.stdout.readline()
    finally:
        timer.cancel()
        if not answer:
            worker.kill()
            worker.wait()
    if answer:
        found: dict[str, Any] = json.loads(answer)
        return found
    if time.monotonic() - started >= timeout:
        raise TimeoutError(f"the simulated API took more than {timeout:g} s")
    raise RuntimeError("the process of the simulated APIs ended, perhaps for lack of memory")


def main() -> None:
    _limit_memory()
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # where what the APIs print goes, too
    code = ApiCode(json.loads(sys.stdin.readline()))
    print("{}", file=output, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        given = (code, job["doc"], job["long_context"])
        try:
            found = last_result(*given, job["calls"]) if "calls" in job else first_difference(*given, job["turns"])
            answer = {"answer": found}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=output, flush=True)  # surrogates are escaped


if __name__ == "__main__":
    main()
