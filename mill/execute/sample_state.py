"""Samples in flight: single requests at once, dialogs round by round, over all tasks together."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from mill.api.errors import RunError
from mill.api.request import Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample, Task
from mill.api.tools import ToolResult
from mill.execute.executor import Answers, Executor
from mill.execute.tools import run_tools, tool_key
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
