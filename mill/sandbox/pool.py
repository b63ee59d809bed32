"""Programs, several at a time: each in an interpreter of its own, forked before the program is there."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from mill.api.errors import DataError
from mill.sandbox.choice import chosen_sandbox
from mill.sandbox.isolation import Sandbox
from mill.sandbox.process import Execution, SandboxRunner

_IMPORT = re.compile(r"^(?:import|from)\s+(\w+)", re.MULTILINE)
_IMPORT_S = 60.0


def run_python(source: str, *, timeout: float, most_output: int = 0) -> Execution:
    """Run a program to its end, with up to so many bytes of what it prints. It passes if it gets there without an
    exception."""
    with SandboxRunner(chosen_sandbox()) as runner:
        return runner.run(source, timeout, most_output)


def run_programs(
    sources: Sequence[str], *, timeout: float, preload: Sequence[str] = (), workers: int | None = None
) -> list[Execution]:
    """What became of each program, in their order; each has `timeout` seconds.

    `preload` are modules that interpreters import before the time of a program starts. There is one worker for each core, so
    that programs do not wait for each other while their time runs.
    """
    sandbox, waiting = chosen_sandbox(), deque(enumerate(sources))
    executions: dict[int, Execution] = {}

    def work() -> None:
        with contextlib.ExitStack() as open_runners:
            runner = None
            while True:
                try:
                    index, source = waiting.popleft()
                except IndexError:
                    return
                if runner is None or not sandbox.reusable:
                    open_runners.close()
                    runner = open_runners.enter_context(SandboxRunner(sandbox, preload))
                executions[index] = runner.run(source, timeout)

    count = min(workers or os.cpu_count() or 1, len(sources))
    with ThreadPoolExecutor(max(count, 1)) as pool:
        started = [pool.submit(work) for _ in range(count)]
        try:
            for one in started:
                one.result()
        finally:
            waiting.clear()  # of the others, where one failed or the user interrupts
    return [executions[index] for index in range(len(sources))]


def require_imports(tests: Iterable[str]) -> None:
    """Refuse tests whose own imports fail in the sandbox: a right program would be scored as wrong."""
    names = {name for test in tests for name in _IMPORT.findall(test)}
    missing = sorted(name for name in names if name.isidentifier() and not has_module(name))
    if missing:
        raise DataError(f"the tests import {missing[0]}, which the Python of the sandbox does not have")


def has_module(name: str) -> bool:
    """Whether a program can import a module here."""
    return _imports(chosen_sandbox(), name)


@functools.cache
def _imports(sandbox: Sandbox, name: str) -> bool:
    with SandboxRunner(sandbox) as runner:
        return runner.run(f"import {name}", _IMPORT_S).passed
