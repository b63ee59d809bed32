"""Programs that a model wrote: the sandbox of a call (`--sandbox`), and running each in an interpreter of its own."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import secrets
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mill.api.consent import current_consent
from mill.api.errors import DataError, RunError, SpecError
from mill.sandbox import runner
from mill.sandbox.isolation import DEFAULT_IMAGE, Bubblewrap, Container, Sandbox, Unisolated

if TYPE_CHECKING:
    from mill.api.task import Task

PASSED, FAILED, TIMED_OUT = "passed", "failed", "timed out"
UNISOLATED = "programs ran without isolation (--sandbox none)"
START_S = 120.0  # for an interpreter with its modules, on a busy machine
_IMPORT_S = 60.0
_MOST_REPORTED = 4096  # bytes
_IMPORT = re.compile(r"^(?:import|from)\s+(\w+)", re.MULTILINE)

_bubblewrap, _unisolated = Bubblewrap(), Unisolated()  # what is known about the machine holds for the process
container = functools.cache(Container)


def chosen_sandbox() -> Sandbox:
    """That of the call."""
    consent = current_consent()
    if consent.sandbox == Container.name:
        return container(consent.sandbox_image or DEFAULT_IMAGE)
    return _unisolated if consent.sandbox == Unisolated.name else _bubblewrap


def refuse_unsafe_code(tasks: Sequence[Task]) -> None:
    """Refuse tasks that would execute a model's code without a sandbox that works, or without the user's consent where that
    is needed: for code that nothing isolates, and for tasks whose code does not run in the sandbox alone."""
    running = [task for task in tasks if task.runs_code]
    if not running:
        return
    sandbox = chosen_sandbox()
    for task in running:
        if not current_consent().confirm_run_unsafe_code and not (task.isolates_code and sandbox.isolates):
            raise SpecError(f"{task.name} executes code that the model wrote: --confirm_run_unsafe_code allows it")
    if sandbox.problem:
        around = "--sandbox none --confirm_run_unsafe_code runs it without isolation"
        raise SpecError(f"{running[0].name} executes code that the model wrote, and {sandbox.problem}; {around}")


def sandbox_label(tasks: Sequence[Task]) -> str:
    """The sandbox of a run, for its manifest; empty where no task executes code."""
    return chosen_sandbox().label if any(task.runs_code for task in tasks) else ""


def sandbox_warnings(task: Task) -> list[str]:
    """What a reader of a task's score must know about how its programs ran."""
    return [UNISOLATED] if task.runs_code and not chosen_sandbox().isolates else []


@dataclass(frozen=True)
class Execution:
    """What became of a program: passed, failed with its error, or timed out; and what it printed, where that was wanted."""

    outcome: str
    error: str = ""
    output: str = ""

    @property
    def passed(self) -> bool:
        return self.outcome == PASSED


def run_programs(
    sources: Sequence[str], *, timeout: float, preload: Sequence[str] = (), workers: int | None = None
) -> list[Execution]:
    """What became of each program, in their order; each has `timeout` seconds.

    `preload` are modules that interpreters import before the time of a program starts. There is one worker for each core, so
    that programs do not wait for each other while their time runs.
    """
    sandbox = chosen_sandbox()
    with ThreadPoolExecutor(max(1, min(workers or os.cpu_count() or 1, len(sources)))) as pool:
        started = [pool.submit(run_program, sandbox, source, timeout, preload=preload) for source in sources]
        try:
            return [one.result() for one in started]
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # of the others, where one failed or the user interrupts


def require_imports(tests: Iterable[str]) -> None:
    """Refuse tests whose own imports fail in the sandbox: a right program would be scored as wrong."""
    names = {name for test in tests for name in _IMPORT.findall(test)}
    sandbox = chosen_sandbox()
    missing = sorted(name for name in names if name.isidentifier() and not has_module(sandbox, name))
    if missing:
        raise DataError(f"the tests import {missing[0]}, which the Python of the sandbox does not have")


@functools.cache
def has_module(sandbox: Sandbox, name: str) -> bool:
    """Whether a program can import a module there."""
    return run_program(sandbox, f"import {name}", _IMPORT_S).passed


def run_program(
    sandbox: Sandbox, source: str, timeout: float, most_output: int = 0, preload: Sequence[str] = ()
) -> Execution:
    """Run a program in a sandbox of its own. If that cannot be started, it is an error of this machine, not of the program.

    A single thread does all of it: bubblewrap ends a sandbox with the thread that started it.
    """
    if sandbox.problem:
        raise RunError(sandbox.problem)
    with contextlib.ExitStack() as stack:
        folder = "/" if sandbox.isolates else stack.enter_context(tempfile.TemporaryDirectory(prefix="mill-"))
        label = f"mill-{secrets.token_hex(8)}"
        process = stack.enter_context(sandbox.start(label, sandbox.arguments(preload), folder))
        stack.callback(sandbox.end, label)
        stack.callback(_kill, process)
        return _run(process, sandbox.name, source, timeout, most_output)


def _run(process: subprocess.Popen[bytes], name: str, source: str, timeout: float, most_output: int) -> Execution:
    pipes, token = _Pipes(process, max(most_output, _MOST_REPORTED)), secrets.token_bytes(runner.TOKEN_BYTES)
    pipes.read(1, time.monotonic() + START_S)
    if pipes.reported[:1] != runner.READY:
        _kill(process)
        why = (pipes.reported or pipes.printed).decode("utf-8", "replace").strip().splitlines()
        raise RunError(f"a sandbox ({name}) failed: {why[-1][:300] if why else f'exit code {process.wait()}'}")
    program = source.encode("utf-8", "surrogatepass")
    numbers = (1 + int(timeout), most_output, len(program))
    with contextlib.suppress(BrokenPipeError):
        _write(process, b"".join(number.to_bytes(8, "big") for number in numbers) + program + token)
    deadline = time.monotonic() + timeout
    pipes.read(_MOST_REPORTED, deadline)
    reported, output = pipes.reported[1:], pipes.printed[:most_output].decode("utf-8", "replace")
    if len(reported) < _MOST_REPORTED - 1:  # it may have closed its pipe and still run
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    if reported == token:
        return Execution(PASSED, output=output)
    if time.monotonic() >= deadline:
        return Execution(TIMED_OUT, output=output)
    _kill(process)
    return Execution(FAILED, _reason(reported, token) or _ending(process.wait()), output)


class _Pipes:
    """What a program reports and what it prints, up to so many bytes of either."""

    def __init__(self, process: subprocess.Popen[bytes], most_printed: int) -> None:
        self.reported, self.printed, self._most = b"", b"", most_printed
        assert process.stdout is not None and process.stderr is not None
        self._results, self._output = process.stdout.fileno(), process.stderr.fileno()
        self._open = [self._output, self._results]

    def read(self, length: int, deadline: float) -> None:
        """Until so many bytes are reported or the pipe is closed, or the deadline."""
        with selectors.DefaultSelector() as selector:
            for pipe in self._open:
                selector.register(pipe, selectors.EVENT_READ)
            while len(self.reported) < length and self._results in self._open:
                ready = {key.fd for key, _ in selector.select(max(0.0, deadline - time.monotonic()))}
                if not ready:
                    return
                for pipe in [pipe for pipe in self._open if pipe in ready]:  # first what was printed before the end
                    part = os.read(pipe, length - len(self.reported) if pipe == self._results else _MOST_REPORTED)
                    if not part:
                        self._open.remove(pipe)
                        selector.unregister(pipe)
                    elif pipe == self._results:
                        self.reported += part
                    else:
                        self.printed += part[: max(0, self._most - len(self.printed))]


def _write(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    while data:
        data = data[process.stdin.write(data) :]


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _reason(reported: bytes, token: bytes) -> str:
    """What a failed program reports, without the token: several processes of it may have come to an end."""
    text = reported.replace(token, b"")[: 4 * runner.MOST_SHOWN].decode("utf-8", "replace").strip()
    if token not in reported:
        return text
    return "the program's result is malformed: it was written more than once" + (f" ({text})" if text else "")


def _ending(code: int) -> str:
    """How a process ended that reported nothing. A sandbox gives the number of a signal above 128, a process below 0."""
    with contextlib.suppress(ValueError):
        return f"ended early with {signal.Signals(-code if code < 0 else code - 128).name}"
    return f"ended early with exit code {code}"
