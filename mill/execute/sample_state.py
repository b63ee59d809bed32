"""Samples in flight: single requests at once, dialogs round by round, over all tasks together.

Tool calls of dialogs are executed between two rounds, many samples at once, and recorded like responses. A call that cannot
be executed is an observation for the model, never an error of the run.
"""

from __future__ import annotations

import contextvars
import itertools
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

from mill.api.errors import RunError
from mill.api.request import MULTI_ROUND, Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample, Task
from mill.api.tools import ERROR, MALFORMED, MOST_CALLS, OK, TIMED_OUT, UNKNOWN, ToolCall, ToolResult
from mill.execute.executor import Answers, Executor, Store
from mill.support.terminal import describe
from mill.tasks.hooks import attempt, check_request, read_requests


@dataclass
class SampleState:
    """One sample of one task: its requests, and for a dialog the rounds of each repeat."""

    task: Task
    sample: Sample
    settings: RenderSettings
    requests: list[Request]
    rounds: list[list[Request]] = field(default_factory=list)
    """Of a dialog: for each repeat the requests of its rounds so far."""
    answers: Answers = field(default_factory=dict)
    """The responses to its requests so far."""

    @classmethod
    def of(cls, task: Task, sample: Sample, settings: RenderSettings) -> SampleState:
        requests = [settings.served(request) for request in read_requests(task, sample, settings)]
        if task.multi_round:
            return cls(task, sample, settings, [], [[clone] for request in requests for clone in request.clones()])
        return cls(task, sample, settings, requests)

    def reset(self) -> None:
        """Without responses, and of a dialog without the rounds that came of them."""
        self.rounds = [rounds[:1] for rounds in self.rounds]
        self.answers.clear()

    @property
    def first_request(self) -> Request:
        return self.requests[0] if self.requests else self.rounds[0][0]

    def all_requests(self) -> list[Request]:
        """Of a dialog: of all rounds so far."""
        return [*self.requests, *(request for rounds in self.rounds for request in rounds)]

    def open_requests(self) -> list[Request]:
        last = (*self.requests, *(rounds[-1] for rounds in self.rounds))
        return [one for one in last if one.key not in self.answers] if self.answers else list(last)  # hashed when needed

    def take(self, answers: Answers) -> None:
        """Take the responses to its open requests."""
        self.answers |= {one.key: answers[one.key] for one in self.open_requests() if one.key in answers}

    def responses(self, requests: Sequence[Request]) -> list[Response]:
        """The first responses to these requests, such as those of one repeat of a dialog."""
        return [self.answers[request.key][0] for request in requests if request.key in self.answers]

    @property
    def max_rounds(self) -> int:
        return self.task.max_rounds if self.settings.max_rounds is None else self.settings.max_rounds

    def waiting_for_tools(self) -> list[list[Request]]:
        """The rounds of each repeat whose last calls of tools have no results yet; those of the last possible round are not
        executed."""
        return [rounds for rounds in self.rounds if len(rounds) < self.max_rounds and self._waits_for_tools(rounds)]

    def _waits_for_tools(self, rounds: Sequence[Request]) -> bool:
        """Whether the last response has calls without results."""
        last = self.answers.get(rounds[-1].key)
        return last is not None and bool(last[0].tool_calls) and not last[0].tool_results

    def attach(self, rounds: Sequence[Request], results: Sequence[ToolResult]) -> None:
        """Add the results of the calls of the last response; refused where they are not those of its calls."""
        key = rounds[-1].key
        (response,) = self.answers[key]
        if len(results) != len(response.tool_calls):
            found = (
                f"the record has {len(results)} tool_results for the {len(response.tool_calls)} tool_calls of the response"
            )
            raise RunError(f"{found} {key}: move its file away to compute them again")
        self.answers[key] = [replace(response, tool_results=tuple(results))]

    def advance(self) -> bool:
        """Add the task's next round to every dialog that has one; False when all are over."""
        advanced = False
        for repeat, rounds in enumerate(self.rounds):
            responses = self.responses(rounds)
            if len(responses) < len(rounds) or responses[-1].failed or len(rounds) >= self.max_rounds:
                continue
            try:
                following = self.task.next_round(self.sample, self.settings, responses)
                if following is not None:
                    check_request(self.task, self.sample, following)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # third-party code: its failure is this sample's, not the run's
                self.answers[rounds[-1].key] = [Response(error=f"next_round() failed: {describe(error)}")]
                continue
            if following is not None:
                rounds.append(replace(self.settings.served(following), repeats=1, draw=repeat))
                advanced = True
        return advanced

    def ended_at_limit(self) -> bool:
        """Whether a dialog ended because of the limit of rounds: its last response has calls of tools, or the limit is the
        run's and the task would have had another round."""
        for rounds in self.rounds:
            responses = self.responses(rounds)
            if len(responses) < self.max_rounds or responses[-1].failed:
                continue
            if self._waits_for_tools(rounds):
                return True
            if self.settings.max_rounds is not None:
                following = partial(self.task.next_round, self.sample, self.settings, responses)
                if attempt(following) is not None:
                    return True
        return False

    def repeats(self) -> list[list[Response]]:
        """For each repeat, the responses in the order of the requests or rounds."""
        if self.rounds:
            return [self.responses(rounds) for rounds in self.rounds]
        return [list(draws) for draws in zip(*(self.answers[request.key] for request in self.requests), strict=True)]


def run_samples(executor: Executor, states: Sequence[SampleState]) -> None:
    """Run until every dialog is over; in each wave all open requests of all tasks go to the model together.

    With a budget only some dialogs are open at a time, so that it ends with dialogs that are over. Where answers to earlier
    rounds were superseded, dialogs take another course, from the start.
    """
    superseded = executor.superseded
    _run_waves(executor, states)
    if executor.superseded != superseded and any(state.rounds for state in states):
        for state in states:
            state.reset()
        run_samples(executor, states)


def _run_waves(executor: Executor, states: Sequence[SampleState]) -> None:
    waiting, active = deque(states), list[SampleState]()
    for number in itertools.count(1):
        _fill(active, waiting, executor.most_dialogs)
        if not executor.any_active(bool(active)):
            return
        answers = executor.run((request for state in active for request in state.open_requests()), round_number=number)
        for state in active:
            state.take(answers)
        run_tools(executor.store, [(state, rounds) for state in active for rounds in state.waiting_for_tools()])
        active = [state for state in active if state.advance()]


def _fill(active: list[SampleState], waiting: deque[SampleState], most: int | None) -> None:
    """Move samples from those that wait to the active ones, as long as no more than `most` of these are dialogs."""
    dialogs = sum(bool(state.rounds) for state in active)
    while waiting and (most is None or dialogs < most or not waiting[0].rounds):
        active.append(state := waiting.popleft())
        dialogs += bool(state.rounds)


def replay(state: SampleState, lookup: Callable[[str], Response | None]) -> bool:
    """Fill a sample with recorded responses, errors included; False where one is missing."""
    while True:
        for request in state.open_requests():
            recorded = [response for clone in request.clones() if (response := lookup(clone.key)) is not None]
            if len(recorded) < request.repeats:
                return False
            state.answers[request.key] = recorded
        for rounds in state.waiting_for_tools():
            results = lookup(tool_key(state.task, state.sample, rounds[-1]).key)
            if results is None:
                return False
            state.attach(rounds, results.tool_results)
        if not state.advance():
            return True


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
            result = execute_call(task, state.sample, call, [*before, replace(last, tool_results=tuple(results))])
        else:
            result = ToolResult(call.name, f"only {MOST_CALLS} calls are executed at once", ERROR, call.id)
        results.append(replace(result, output=_shortened(result.output, most)))
    return results


def execute_call(task: Task, sample: Sample, call: ToolCall, responses: Sequence[Response] = ()) -> ToolResult:
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
