"""Tool calls of dialogs: executed between two rounds, many samples at once, and recorded like responses.

A call that cannot be executed is an observation for the model, never an error of the run.
"""

from __future__ import annotations

import contextvars
import os
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from mill.api.request import MULTI_ROUND, Request
from mill.api.response import Response
from mill.api.task import Sample, Task
from mill.api.tools import ERROR, MALFORMED, MOST_CALLS, OK, TIMED_OUT, UNKNOWN, ToolCall, ToolResult
from mill.execute.executor import Store
from mill.support.terminal import describe

if TYPE_CHECKING:
    from mill.execute.sample_state import SampleState


def tool_key(task: Task, sample: Sample, request: Request) -> Request:
    """The request under whose key the results of a round's calls are recorded. It is never shared between runs: a tool may
    give something else each time."""
    return Request(MULTI_ROUND, f"tools of {task.name}/{sample.id} after {request.key}", options={"temperature": 1.0})


def run_tools(store: Store, dialogs: Iterable[tuple[SampleState, Sequence[Request]]]) -> None:
    """Execute the calls of all dialogs whose last round waits for them, and attach the results to its response.

    The calls of one response run one after another, in their order.
    """
    pending = []
    for state, rounds in dialogs:
        recorded = store.get(tool_key(state.task, state.sample, rounds[-1]))
        if recorded is not None:
            state.attach(rounds, recorded.tool_results)
        else:
            pending.append((state, rounds))
    if not pending:
        return
    pool = ThreadPoolExecutor(2 * (os.cpu_count() or 1))
    try:
        contexts = [contextvars.copy_context() for _ in pending]  # of the call, which allows what tools do
        found = pool.map(lambda context, one: context.run(_results, *one), contexts, pending)
        for (state, rounds), results in zip(pending, found, strict=True):
            key = tool_key(state.task, state.sample, rounds[-1])
            store.put(key, Response(text="", tool_results=tuple(results)))
            state.attach(rounds, results)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # an interruption does not wait for calls that have not begun


def _results(state: SampleState, rounds: Sequence[Request]) -> list[ToolResult]:
    """The results of the calls of the last response."""
    task, settings = state.task, state.settings
    most = task.max_tool_output if settings.max_tool_output is None else settings.max_tool_output
    *before, last = state.responses(rounds)
    results: list[ToolResult] = []
    for index, call in enumerate(last.tool_calls):
        if index < MOST_CALLS:
            result = execute(task, state.sample, call, [*before, replace(last, tool_results=tuple(results))])
        else:
            result = ToolResult(call.name, f"only {MOST_CALLS} calls are executed at once", ERROR, call.id)
        results.append(replace(result, output=_shortened(result.output, most)))
    return results


def execute(task: Task, sample: Sample, call: ToolCall, responses: Sequence[Response] = ()) -> ToolResult:
    """What came of one call; a failure is a result, too. `responses` are those that `Task.call_tool` gets."""
    names = [tool.name for tool in task.tools(sample)]
    if call.name not in names:
        return ToolResult(call.name, f"there is no tool {call.name!r}; there are: {', '.join(names)}", UNKNOWN, call.id)
    if call.arguments is None:
        return ToolResult(call.name, f"the arguments are not a JSON object: {call.text[:200]}", MALFORMED, call.id)
    outcome, output = _within(task.tool_timeout_s, lambda: task.call_tool(sample, call, responses))
    return ToolResult(call.name, output, outcome, call.id)


def _within(seconds: float, call: Callable[[], str]) -> tuple[str, str]:
    """(outcome, output) of a function. One that hangs is left behind in its thread, which ends with the process."""
    answers: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()

    def work() -> None:
        try:
            output = call()
            answers.put((OK, output if isinstance(output, str) else str(output)))
        except TimeoutError as error:
            answers.put((TIMED_OUT, describe(error)))
        except BaseException as error:  # a tool may be third-party code
            answers.put((ERROR, describe(error)))

    threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True).start()
    try:
        return answers.get(timeout=seconds)
    except queue.Empty:
        return TIMED_OUT, f"the tool gave no answer in {seconds:g} s"


def _shortened(output: str, most: int) -> str:
    """The start and the end of a long output, with how much is left out between them."""
    if len(output) <= most:
        return output
    head, tail = output[: most - most // 4], output[len(output) - most // 4 :]
    return f"{head}\n[{len(output) - most} characters left out]\n{tail}"
