"""Runs requests on a model: grouped by kind, equal ones once, recorded ones not at all; stores each response at once."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

from mill.api.batching import WINDOW, Completed
from mill.api.engine import Engine
from mill.api.errors import FastPathFailed, MillError, ModelBroken, ModelError
from mill.api.model import TEXT_KINDS, ComputeDevice, HasPaths, MillModel, StreamContext, run_requests
from mill.api.request import MULTI_ROUND, Request
from mill.api.response import Response
from mill.execute.meter import DIALOGS, Meter
from mill.support.clocks import LOADING, RECORDING, phase
from mill.support.terminal import Progress, TokenCount, describe, warn

Answers = dict[str, list[Response]]
"""The responses to requests by their keys: one for each of the `repeats` of a request."""


class Store(Protocol):
    """Stores responses. `get` returns only those that may be reused."""

    def get(self, request: Request) -> Response | None: ...

    def put(self, request: Request, response: Response) -> Response:
        """Store a response; returns the stored one."""

    def supersede(self) -> None:
        """Forget all responses: they are requested again."""


@dataclass
class Tally:
    """Counts of an execution."""

    requested: int = 0
    known: int = 0
    computed: int = 0
    failed: int = 0
    padded: int = 0
    """Padding requests that keep this rank in lock-step with others, and are never scored."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    """Those of the output tokens that are reasoning, as far as engines count them."""
    answering_s: float = 0.0
    """Seconds that the model computed, without loading."""
    scored: int = 0
    """Those of the computed requests for which no text is generated."""
    scored_tokens: int = 0
    """Those of the output tokens that were given, and scored."""
    scoring_s: float = 0.0
    """Those of the answering seconds in which no text was generated."""
    computed_tokens: int = 0
    """Tokens of forward passes over prompts, those of shared prefixes once; 0 where they are not known."""


class Executor:
    """Runs requests of any number of tasks on one backend, and stores the responses."""

    def __init__(
        self,
        backend: ExecutorBackend,
        store: Store,
        *,
        quiet: bool = False,
        on_first_response: Callable[[], None] | None = None,
    ) -> None:
        """`on_first_response` is called once, when the first response is stored."""
        self.backend, self.store, self.quiet = backend, store, quiet
        self.context = StreamContext()
        self.tally = Tally()
        self.round_number = 1
        self.meter: Meter | None = None
        self.superseded = 0
        """How often a fast path of the model was found to be wrong: the store then has other answers than before."""
        self._on_first_response = on_first_response

    @contextlib.contextmanager
    def metered(self, meter: Meter, account: str) -> Iterator[None]:
        """Count what is computed meanwhile, within the budget."""
        meter.use(account)
        self.meter = meter
        self.context.meter = meter if meter.limits and self.backend.meters_calls else None
        try:
            yield
        finally:
            self.context.meter = None

    @property
    def stopped(self) -> str:
        """Which limit of the budget ended the work; empty where none did."""
        return self.meter.stopped if self.meter is not None else ""

    @property
    def most_dialogs(self) -> int | None:
        """How many dialogs may be open at a time."""
        return DIALOGS if self.meter is not None and self.meter.limits else None

    def run(self, requests: Iterable[Request], *, round_number: int = 1) -> Answers:
        """Compute every request `repeats` times. Requests with equal content share one computation for each draw. At the end
        of a budget the requests that are left have no responses.

        `round_number` is that of the dialogs among them, for the progress.

        Requests are processed in windows, which are large enough to find shared prefixes.
        """
        self.round_number = round_number
        requests = list(requests)
        while True:
            known = self.tally.known
            try:
                return self._run_windows(requests)
            except FastPathFailed as failure:
                warn(f"a fast path was wrong: {failure}; all answers are computed again without it")
                self.store.supersede()  # those of earlier sessions too: the same fast path gave them
                self.superseded += 1
                self.tally.computed = self.tally.failed = self.tally.scored = 0
                self.tally.requested = self.tally.known = known

    def _run_windows(self, requests: Sequence[Request]) -> Answers:
        answers: Answers = {}
        for start in range(0, len(requests), WINDOW):
            by_kind: dict[str, list[Request]] = {}
            for request in requests[start : start + WINDOW]:
                by_kind.setdefault(request.kind, []).append(request)
            for kind, group in by_kind.items():
                answers |= self._run_kind(kind, group)
        return answers

    def any_active(self, active: bool) -> bool:
        """Whether another wave is needed: in lock-step, as long as one rank has requests left."""
        return active

    def _run_kind(self, kind: str, requests: Sequence[Request]) -> Answers:
        clones = [request.clones() for request in requests]
        responses: dict[str, Response] = {}
        pending: dict[str, Request] = {}
        for clone in chain.from_iterable(clones):
            self.tally.requested += 1
            key = clone.key
            if key in responses or key in pending:
                continue
            recorded = self.store.get(clone)
            if recorded is not None:
                self.tally.known += 1
                responses[key] = recorded
                self.context.recorded = clone
            else:
                pending[key] = clone
        self._compute(kind, list(pending.values()), responses)
        return {
            request.key: [responses[clone.key] for clone in draws]
            for request, draws in zip(requests, clones, strict=True)
            if not self.stopped or all(clone.key in responses for clone in draws)
        }

    def _compute(self, kind: str, requests: list[Request], responses: dict[str, Response]) -> None:
        left = list(requests)
        count = self._fitting(left)
        if not count:
            return
        with phase(LOADING):
            self.backend.load(left[:count])
        with self._progress(kind, len(requests)) as progress:
            while count:
                with self._counted(kind):
                    self._record_all(self.backend.stream(kind, left[:count], self.context), responses, progress)
                left = [request for request in left if request.key not in responses]
                count = self._fitting(left)

    @contextlib.contextmanager
    def _counted(self, kind: str) -> Iterator[None]:
        """Count what is computed inside, also where that is interrupted."""
        started = time.perf_counter()
        self.context.tokens = tokens = TokenCount()
        try:
            yield
        finally:
            seconds = time.perf_counter() - started
            self.tally.answering_s += seconds
            self.tally.scoring_s += 0.0 if kind in TEXT_KINDS else seconds
            self.tally.computed_tokens += tokens.computed + tokens.prompts

    def _fitting(self, requests: Sequence[Request]) -> int:
        """How many of the requests, from the first on, are sent next: all of them, or what the budget has room for."""
        if not requests or self.meter is None:
            return len(requests)
        return self.meter.fitting(requests, calls=self.backend.meters_calls, answering_s=self.tally.answering_s)

    def _progress(self, kind: str, count: int) -> Progress:
        title = f"{kind}, round {self.round_number}" if kind == MULTI_ROUND else kind
        return Progress(title, count, quiet=self.quiet, tokens=lambda: self.context.tokens)

    def _record_all(
        self, stream: Generator[Completed, None, None], responses: dict[str, Response], progress: Progress
    ) -> None:
        """Store each response when it arrives, before it counts as progress."""
        with contextlib.closing(stream):
            for request, response in stream:
                self._record(request, response, responses)
                progress.advance(failed=response.failed)
                if self._on_first_response is not None:
                    self._on_first_response()
                    self._on_first_response = None

    def _record(self, request: Request, response: Response, responses: dict[str, Response]) -> None:
        with phase(RECORDING):
            if self.meter is not None:
                self.meter.add(request, response)  # first: a process killed in between computes it again
            responses[request.key] = self.store.put(request, response)
        self.tally.computed += 1
        self.tally.failed += response.failed
        self.tally.prompt_tokens += response.prompt_tokens or 0
        self.tally.output_tokens += response.output_tokens or 0
        if request.kind not in TEXT_KINDS:
            self.tally.scored += 1
            self.tally.scored_tokens += response.output_tokens or 0
        self.tally.reasoning_tokens += response.reasoning_tokens or 0


class ExecutorBackend(ABC):
    """What computes responses: the model in this process, or workers that each hold it."""

    meters_calls: bool
    """Whether the meter is asked before each request: the stream then ends early where there is no room for one."""

    def load(self, requests: Sequence[Request]) -> None:  # noqa: B027
        """Called before the first request, with those that follow, so that rates do not include loading."""

    @abstractmethod
    def stream(self, kind: str, requests: Sequence[Request], context: StreamContext) -> Generator[Completed, None, None]:
        """Every request with its response, as soon as it is complete. No two requests may be equal."""

    @abstractmethod
    def warnings(self) -> list[str]:
        """Warnings about how the scores were computed."""

    @abstractmethod
    def engines(self) -> dict[str, Engine]:
        """All known engines that have answered, by id."""

    def execution_paths(self) -> dict[str, str]:
        """Which execution paths of the model computed the answers, by stage, as far as that is known."""
        return {}

    def compute_device(self) -> ComputeDevice | None:
        """What computed the answers in this process; None where that is not known."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Free memory and workers."""


class LocalBackend(ExecutorBackend):
    """The model in this process."""

    def __init__(self, model: MillModel) -> None:
        self.model = model
        self.meters_calls = model.meters_calls

    def load(self, requests: Sequence[Request]) -> None:
        try:
            if self.model.startup is not None:
                self.model.startup.prepare(requests)
            self.model.load()
        except (MillError, KeyboardInterrupt):
            raise
        except BaseException as error:  # third-party code may raise anything
            raise ModelError(f"the model could not be loaded: {describe(error)}") from error

    def stream(self, kind: str, requests: Sequence[Request], context: StreamContext) -> Generator[Completed, None, None]:
        completed: set[str] = set()
        try:
            for request, response in run_requests(self.model, kind, requests, context):
                completed.add(request.key)
                yield request, response
        except ModelBroken:
            if context.recorded is None or self.model.lock_step:
                raise
            for _, response in run_requests(self.model, context.recorded.kind, [context.recorded], context):
                if response.failed:
                    broken = "the model fails even on a request that it answered before"
                    raise ModelBroken(f"{broken}: {response.error}") from None
            remaining = [request for request in requests if request.key not in completed]
            yield from run_requests(self.model, kind, remaining, context)

    def warnings(self) -> list[str]:
        return self.model.warnings()

    def engines(self) -> dict[str, Engine]:
        return self.model.engines

    def execution_paths(self) -> dict[str, str]:
        return self.model.execution_paths() if isinstance(self.model, HasPaths) else {}

    def compute_device(self) -> ComputeDevice | None:
        return self.model.compute_device() if isinstance(self.model, HasPaths) else None

    def close(self) -> None:
        """A model that cannot free its memory has answered: the scores stay."""
        try:
            self.model.clean()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # third-party code may raise anything
            warn(f"{self.model.model_name}: clean() raised {describe(error)}")
