"""A model on several servers: a thread for each takes chunks of requests from one queue; responses come in one stream.

A server that is lost is tried again, and the requests that it had not answered go to the others.
"""

from __future__ import annotations

import contextlib
import contextvars
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field

from mill.api.batching import Completed
from mill.api.budget import CallMeter, most_output
from mill.api.errors import MillError, ModelBroken, ModelError, ServerBroken, ServerGone
from mill.api.message import Context
from mill.api.model import MillModel, StreamContext, run_requests
from mill.api.request import Request
from mill.api.response import Response
from mill.execute.executor import ExecutorBackend
from mill.support.processes import next_of
from mill.support.terminal import describe, warn

POLL_S = 0.2
LEAVE_S = 2.0
MAX_DEATHS = 3  # of servers on one request, before it is an error
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 20.0  # before a lost server is tried again


@dataclass(eq=False)
class Worker:
    """One of the threads, with the model on its server. Threads of two streams take turns."""

    number: int
    model: MillModel | None = None
    """None until the server is needed, and while it is lost."""
    was_lost: bool = False
    turn: threading.Lock = field(default_factory=threading.Lock)


class Pool(ExecutorBackend):
    """`open_model(n)` opens the model of worker number n; it raises ServerGone while the server cannot be reached. That is
    done in parallel at the first stream; servers that are ready do not wait for the others.

    After a loss a server must answer the canary before it gets work again: it may be up and fail. With `meters_calls` the
    models ask the meter before each request.
    """

    def __init__(self, open_model: Callable[[int], MillModel], workers: int, *, meters_calls: bool = False) -> None:
        self.open_model, self.meters_calls = open_model, meters_calls
        self.workers = [Worker(number) for number in range(workers)]
        self._canary: Request | None = None
        self._meter: CallMeter | None = None
        self._threads: list[threading.Thread] = []
        self._opened: list[MillModel] = []
        self._losses = 0

    def stream(self, kind: str, requests: Sequence[Request], context: StreamContext) -> Generator[Completed, None, None]:
        self._meter = context.meter
        canary = self._canary or context.recorded
        work = WorkQueue(requests, len(self.workers), canary, in_order=context.meter is not None)
        self._threads = []
        for worker in self.workers:
            arguments = (self._work, worker, kind, work)
            self._threads.append(threading.Thread(target=contextvars.copy_context().run, args=arguments, daemon=True))
            self._threads[-1].start()
        try:
            while (result := next_of(work.results)) is not None:
                if isinstance(result, MillError):
                    raise result
                yield result
        finally:
            work.stop()
            self._canary = work.canary

    # The thread of a worker.

    def _work(self, worker: Worker, kind: str, work: WorkQueue) -> None:
        """Compute chunks until none is left. A worker takes one only when its server is ready."""
        while not worker.turn.acquire(timeout=POLL_S):  # one of an earlier stream may still wait for the server
            if work.over.is_set():
                return
        try:
            while (model := self._ready(worker, work)) is not None and (chunk := work.take()) is not None:
                left = {request.key: request for request in chunk}
                try:
                    self._compute(model, kind, left, work)
                    work.finish(full=bool(left))
                except ServerGone as gone:
                    worker.model, worker.was_lost = None, True
                    self._losses += 1
                    warn(f"a server was lost ({gone}); the others continue with its requests")
                    work.finish(left.values(), deadly="" if isinstance(gone, ServerBroken) else str(gone))
                    work.count_loss(str(gone))
                except ModelBroken as broken:  # the chunk may hold only bad requests: others may succeed
                    work.finish(left.values())
                    work.count_loss(str(broken))
                    work.await_canary(broken)
        except BaseException as error:
            work.stop(error if isinstance(error, MillError) else ModelError(f"a worker failed: {describe(error)}"))
        finally:
            worker.turn.release()

    def _compute(self, model: MillModel, kind: str, left: dict[str, Request], work: WorkQueue) -> None:
        """Compute the requests that are `left` of a chunk; those with a response are removed, so that what then is left had
        no room in the budget."""
        count, context = len(left), StreamContext(self._meter, outage_patience_s=0.0, canary=work.canary)
        with contextlib.closing(run_requests(model, kind, list(left.values()), context)) as stream:
            for request, response in stream:
                if work.over.is_set():
                    return
                if left.pop(request.key, None) is not None:
                    work.answer(request, response)
        if left and self._meter is None:
            raise ModelError(f"a server answered {count - len(left)} of {count} requests")

    def _ready(self, worker: Worker, work: WorkQueue) -> MillModel | None:
        """The model of a worker, opened where it is not; None where it is not needed any more."""
        pause = FIRST_PAUSE_S
        while worker.model is None and not work.over.is_set():
            try:
                worker.model = self._open(worker, work.canary)
            except ServerGone as gone:
                warn(f"a server cannot be used ({gone}); it is tried again")
                work.count_loss(str(gone), while_idle=True)
                work.over.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
        return worker.model

    def _open(self, worker: Worker, canary: Request | None) -> MillModel:
        """Open a model; raises ServerGone where it was lost and fails on a request that another one answered."""
        model = self.open_model(worker.number)
        if worker.was_lost and canary is not None:
            for _, response in run_requests(model, canary.kind, [canary], StreamContext(outage_patience_s=0.0)):
                if response.failed:
                    raise ServerGone(f"it fails on a request that another one answered: {response.error}")
        self._opened.append(model)
        return model

    def warnings(self) -> list[str]:
        """Those of the models, and how often a server was lost."""
        texts = dict.fromkeys(text for model in self._opened for text in model.warnings())
        return [*texts, *([f"servers that were lost and tried again: {self._losses}"] if self._losses else [])]

    def close(self) -> None:
        """Wait briefly for the threads; one may still be waiting for its server."""
        until = time.monotonic() + LEAVE_S
        for thread in self._threads:
            thread.join(timeout=max(0.0, until - time.monotonic()))
        for model in self._opened:
            with contextlib.suppress(Exception):  # its server may be gone
                model.clean()


SHARE = 0.7  # of an equal split, in the next chunk
SMALL_CHUNK = 32  # requests, with a budget
_CHARACTERS_PER_TOKEN = 4


class WorkQueue:
    """Large chunks first and smaller ones towards the end, so that all workers finish together.

    Requests with the same media or a shared prefix are adjacent, and those with the same context are never split: a server
    computes what they share once. With a budget they are taken `in_order`, in small chunks: what it reaches are the first
    samples, or a smaller random draw. Thread-safe.
    """

    def __init__(
        self, requests: Sequence[Request], workers: int, canary: Request | None = None, *, in_order: bool = False
    ) -> None:
        groups: dict[Context, list[Request]] = {}
        for request in requests:
            groups.setdefault(request.context, []).append(request)
        self._in_order = in_order
        ordered = [*groups.values()] if in_order else sorted(groups.values(), key=lambda group: group[0].prefix_order)
        self._untaken = deque((group, sum(map(_cost, group))) for group in ordered)
        self._left = sum(cost for _, cost in self._untaken)
        self._smallest = self._left / (8 * workers) if workers > 1 else self._left
        self._workers = workers
        self._returned: deque[list[Request]] = deque()
        self._deaths: Counter[str] = Counter()
        self._losses = self._broken = 0
        self._open, self._taken = len(requests), 0
        self._full, self.over = False, threading.Event()
        self.canary = canary
        """A request that was answered."""
        self._changed = threading.Condition()
        self.results: queue.SimpleQueue[Completed | MillError | None] = queue.SimpleQueue()
        """For the reader of the stream; an error or None ends it."""
        if not requests:
            self.stop()

    def take(self) -> list[Request] | None:
        """The next chunk; None when every request is completed. Waits while other workers may still return some."""
        with self._changed:
            self._changed.wait_for(lambda: self._untaken or self._returned or self.over.is_set() or self._full)
            if self.over.is_set() or self._full:
                return None
            self._taken += 1
            return self._returned.popleft() if self._returned else self._next()

    def answer(self, request: Request, response: Response) -> None:
        """Pass a response on to the reader."""
        with self._changed:
            self._losses = 0
            if not response.failed:
                self.canary = self.canary or request
            self.results.put((request, response))
            self._open -= 1
            if not self._open:
                self.stop()
            self._changed.notify_all()

    def finish(self, left: Collection[Request] = (), *, deadly: str = "", full: bool = False) -> None:
        """A worker is done with its chunk; what is left goes to others. `deadly` says why its server died. With `full` the
        budget has no room for more: only the chunks that other workers have are awaited.

        From their second death on, chunks are halved, until the request on which servers die is alone; after `MAX_DEATHS` it
        is an error.
        """
        with self._changed:
            requests = list(left)
            self._deaths.update(request.key for request in requests if deadly)
            deaths = max((self._deaths[request.key] for request in requests), default=0)
            if len(requests) == 1 and deaths >= MAX_DEATHS and deadly:
                error = f"the server died each of the {MAX_DEATHS} times it got this request: {deadly}"
                self.answer(requests.pop(), Response(error=error))
            middle = (len(requests) + 1) // 2 if deaths > 1 else len(requests)
            self._returned.extend(part for part in (requests[:middle], requests[middle:]) if part)
            self._taken -= 1
            self._full = self._full or full
            if self._full and not self._taken:
                self.stop()
            self._changed.notify_all()

    def count_loss(self, reason: str, *, while_idle: bool = False) -> None:
        """Stop after too many losses without an answer. One `while_idle` counts where no other worker computes a chunk."""
        with self._changed:
            self._losses += not (while_idle and self._taken)
            if self._losses > MAX_DEATHS * self._workers + MAX_DEATHS:
                self.stop(ModelError(f"servers were lost {self._losses} times and none has answered since: {reason}"))

    def await_canary(self, broken: ModelBroken) -> None:
        """Wait until any request is answered: the model may be at fault, or the requests. Raises where all workers wait."""
        with self._changed:
            self._broken += 1
            if self._broken >= self._workers and self.canary is None:
                raise broken
            self._changed.wait_for(lambda: self.canary is not None or self.over.is_set())

    def stop(self, error: MillError | None = None) -> None:
        """Hand out no more chunks, and await none."""
        with self._changed:
            if not self.over.is_set():
                self.over.set()
                self.results.put(error)
            self._changed.notify_all()

    def _next(self) -> list[Request]:
        wanted = max(self._smallest, SHARE * self._left / self._workers)
        chunk: list[Request] = []
        taken = 0.0
        while self._untaken:
            group, cost = self._untaken.popleft()
            chunk += group
            taken += cost
            if len(chunk) >= SMALL_CHUNK if self._in_order else taken >= wanted:
                break
        self._left -= taken
        return chunk


def _cost(request: Request) -> float:
    """A rough estimate of the time a request takes, in characters."""
    return 1 + len(request.text) + len(request.continuation) + _CHARACTERS_PER_TOKEN * most_output(request)
