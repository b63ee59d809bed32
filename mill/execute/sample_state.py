"""Samples in flight: single requests at once, dialogs round by round, over all tasks together."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from mill.api.request import Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample, Task
from mill.execute.executor import Executor
from mill.execute.tools import attach, run_tools, tool_key, waits_for_tools
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

    @classmethod
    def of(cls, task: Task, sample: Sample, settings: RenderSettings) -> SampleState:
        requests = [settings.served(request) for request in read_requests(task, sample, settings)]
        if task.multi_round:
            return cls(task, sample, settings, [], [[clone] for request in requests for clone in request.clones()])
        return cls(task, sample, settings, requests)

    def reset(self) -> None:
        """Without responses, and of a dialog without the rounds that came of them."""
        self.rounds = [rounds[:1] for rounds in self.rounds]
        for request in self.all_requests():
            request.resps.clear()

    @property
    def first_request(self) -> Request:
        return self.requests[0] if self.requests else self.rounds[0][0]

    def all_requests(self) -> list[Request]:
        """Of a dialog: of all rounds so far."""
        return [*self.requests, *(request for rounds in self.rounds for request in rounds)]

    def open_requests(self) -> list[Request]:
        return [request for request in (*self.requests, *(rounds[-1] for rounds in self.rounds)) if not request.resps]

    @property
    def max_rounds(self) -> int:
        return self.task.max_rounds if self.settings.max_rounds is None else self.settings.max_rounds

    def waiting_for_tools(self) -> list[list[Request]]:
        """The rounds of each repeat whose last calls of tools have no results yet; those of the last possible round are not
        executed."""
        return [rounds for rounds in self.rounds if len(rounds) < self.max_rounds and waits_for_tools(rounds[-1])]

    def advance(self) -> bool:
        """Add the task's next round to every dialog that has one; False when all are over."""
        advanced = False
        for repeat, rounds in enumerate(self.rounds):
            responses = [request.resps[0] for request in rounds if request.resps]
            if len(responses) < len(rounds) or responses[-1].failed or len(rounds) >= self.max_rounds:
                continue
            try:
                following = self.task.next_round(self.sample, self.settings, responses)
                if following is not None:
                    check_request(self.task, self.sample, following)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # third-party code: its failure is this sample's, not the run's
                rounds[-1].resps[:] = [Response(error=f"next_round() failed: {describe(error)}")]
                continue
            if following is not None:
                rounds.append(replace(self.settings.served(following), repeats=1, draw=repeat, resps=[]))
                advanced = True
        return advanced

    def ended_at_limit(self) -> bool:
        """Whether a dialog ended because of the limit of rounds: its last response has calls of tools, or the limit is the
        run's and the task would have had another round."""
        for rounds in self.rounds:
            responses = [request.resps[0] for request in rounds if request.resps]
            if len(responses) < self.max_rounds or responses[-1].failed:
                continue
            if waits_for_tools(rounds[-1]):
                return True
            if self.settings.max_rounds is not None:
                following = partial(self.task.next_round, self.sample, self.settings, responses)
                if attempt(following) is not None:
                    return True
        return False

    def repeats(self) -> list[list[Response]]:
        """For each repeat, the responses in the order of the requests or rounds."""
        if self.rounds:
            return [[request.resps[0] for request in rounds if request.resps] for rounds in self.rounds]
        return [list(responses) for responses in zip(*(request.resps for request in self.requests), strict=True)]


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
        executor.run((request for state in active for request in state.open_requests()), round_number=number)
        calls = ((state, rounds) for state in active for rounds in state.waiting_for_tools())
        run_tools(executor.store, [(state.task, state.sample, state.settings, rounds) for state, rounds in calls])
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
            request.resps[:] = recorded
        for rounds in state.waiting_for_tools():
            results = lookup(tool_key(state.task, state.sample, rounds[-1]).key)
            if results is None:
                return False
            attach(rounds[-1], results.tool_results)
        if not state.advance():
            return True
