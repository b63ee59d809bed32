"""Several workers that each hold the model: a queue of chunks, and responses in one stream.

A worker that dies is replaced, and the requests that it had not answered go to others. workers.py has the worker of a
server.
"""

from __future__ import annotations

import contextlib
import contextvars
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Protocol

from mill.api.batching import Completed
from mill.api.budget import CallMeter
from mill.api.errors import MillError, ModelBroken, ModelError
from mill.api.message import Context
from mill.api.model import StreamContext
from mill.api.request import GENERATE, MULTI_ROUND, Request
from mill.api.response import Response
from mill.execute.executor import ExecutorBackend
from mill.support.terminal import describe, warn

POLL_S = 0.2
LEAVE_S = 2.0
MAX_DEATHS = 3  # of workers on one request, before it is an error
MAX_FAILED_CHUNKS = 2  # before a worker waits until another one completes a request
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 20.0  # before a lost worker is replaced

Keyed = tuple[str, Response]
"""A response with the key of its request, which identifies the request across processes."""
Report = tuple[list[str], dict[str, str]]
"""The warnings of a worker's model, and which of its execution paths computed the answers, by stage."""


class WorkerLost(Exception):
    """A worker died or its server is gone; the cause need not be a request."""


class Worker(Protocol):
    def stream(self, kind: str, requests: Sequence[Request], meter: CallMeter | None) -> Iterator[list[Keyed]]:
        """The responses to a chunk as they arrive; the meter is asked before each request. Raises WorkerLost if the worker
        dies, MillError if the model fails."""

    def report(self) -> Report: ...

    def end(self) -> None: ...


@dataclass(eq=False)
class WorkerSlot:
    """The place of one worker, in which a lost one is replaced."""

    number: int
    worker: Worker | None = None
    busy: bool = False
    """Whether it computes a chunk."""
    failed_chunks: int = 0
    """Chunks of this stream of which it failed on every request."""
    suspect: bool = False
    """Whether it waits for another worker to complete a request, as it failed on several chunks."""
    was_lost: bool = False
    starting: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True)
class Loss:
    """A worker died, or could not be started."""

    reason: str
    started: bool


Message = list[Completed] | Loss | MillError
"""From the threads of the workers to the thread that reads the stream; an error ends it."""


class Pool(ExecutorBackend):
    """`start_worker(n)` starts worker number n and returns when it is ready; it raises WorkerLost or a MillError. Workers
    start at the first stream, in parallel; those that are ready do not wait for the others.

    After a loss a worker must answer the canary before it gets work again: a server may be up and fail. With `meters_calls`
    the models of the workers ask the meter.
    """

    def __init__(self, start_worker: Callable[[int], Worker], workers: int, *, meters_calls: bool = False) -> None:
        self.start_worker, self.workers = start_worker, workers
        self.slots = [WorkerSlot(number) for number in range(workers)]
        self._canary: Request | None = None
        self._meter: CallMeter | None = None
        self.meters_calls = meters_calls
        self._close_count = 0
        self._threads: list[threading.Thread] = []
        self._warnings: dict[str, None] = {}
        self._paths: dict[int, dict[str, str]] = {}
        self._deaths = 0

    def stream(self, kind: str, requests: Sequence[Request], context: StreamContext) -> Generator[Completed, None, None]:
        self._meter, self._canary = context.meter, self._canary or context.recorded
        work = WorkQueue(requests, self.workers)
        self._threads = []
        for slot in self.slots:
            slot.failed_chunks, slot.suspect = 0, False
        unused = iter(sorted(self.slots, key=lambda slot: slot.worker is None and slot.was_lost))

        def start_thread() -> None:
            """Start one more worker, where one has no thread yet."""
            for slot in islice(unused, 1):
                given = (self._work, slot, kind, work)
                thread = threading.Thread(target=contextvars.copy_context().run, args=given, daemon=True)
                self._threads.append(thread)
                thread.start()

        for _ in range(work.groups):
            start_thread()
        try:
            yield from self._receive(work, len(requests), start_thread)
        finally:
            work.stop()
        self._join_threads()

    def _receive(self, work: WorkQueue, total: int, start_thread: Callable[[], None]) -> Iterator[Completed]:
        """Yield responses until all have arrived, in the thread that reads the stream."""
        received, deaths = 0, 0
        while received < total and not (work.drained and work.messages.empty()):
            message = work.messages.get()
            if isinstance(message, MillError):
                raise message
            if isinstance(message, Loss):
                self._deaths += message.started
                # While another worker computes a chunk, one that cannot start is no reason to stop.
                deaths += message.started or not any(slot.busy for slot in self.slots)
                if deaths > MAX_DEATHS * self.workers + MAX_DEATHS:
                    raise ModelError(f"{deaths} workers died and none has answered since: {message.reason}")
                event = "died" if message.started else "could not start"
                action = "another one continues with its requests" if message.started else "it is tried again"
                warn(f"a worker {event} ({message.reason}); {action}")
                start_thread()
                continue
            yield from message
            if message:
                received, deaths = received + len(message), 0
            work.done(len(message))

    def _join_threads(self) -> None:
        """Wait briefly for the threads; one may still be waiting for its server."""
        until = time.monotonic() + LEAVE_S
        for thread in self._threads:
            thread.join(timeout=max(0.0, until - time.monotonic()))

    # The thread of one worker.

    def _work(self, slot: WorkerSlot, kind: str, work: WorkQueue) -> None:
        """Compute chunks until none is left. A worker takes one only when it is ready, not while it waits for its server."""
        try:
            while self._ready(slot, work) and (chunk := work.take()) is not None:
                try:
                    self._compute(slot, kind, {request.key: request for request in chunk}, work)
                finally:
                    work.leave()
        except BaseException as error:
            work.messages.put(error if isinstance(error, MillError) else ModelError(f"a worker failed: {describe(error)}"))
            return
        work.messages.put([])  # the reader then checks whether the work was closed
        if slot.worker is not None:
            with contextlib.suppress(WorkerLost):
                warnings, self._paths[slot.number] = slot.worker.report()
                self._warnings |= dict.fromkeys(warnings)

    def _compute(self, slot: WorkerSlot, kind: str, left: dict[str, Request], work: WorkQueue) -> None:
        """Compute the requests of a chunk; those that are `left` where the worker or its model fails go to others."""
        try:
            self._stream_chunk(slot, kind, left, work)
            if left:
                work.close()  # there was no room for the others
        except WorkerLost as lost:
            self._drop(slot)
            work.messages.put(Loss(str(lost), started=True))
            error = f"the worker died each of the {MAX_DEATHS} times it got this request: {lost}"
            work.messages.put([(request, Response(error=error)) for request in work.give_back(list(left.values()))])
        except ModelBroken:
            work.put_back(list(left.values()))  # the chunk may hold only bad requests: others may succeed
            slot.failed_chunks += 1
            slot.suspect = slot.failed_chunks >= MAX_FAILED_CHUNKS
            while slot.suspect and self._canary is None and not work.over:
                if sum(other.suspect for other in self.slots) >= len(self._threads):
                    raise
                time.sleep(POLL_S)
            slot.suspect = False
            try:
                self._check_canary(slot)
            except WorkerLost as lost:
                work.messages.put(Loss(str(lost), started=True))

    def _stream_chunk(self, slot: WorkerSlot, kind: str, left: dict[str, Request], work: WorkQueue) -> None:
        """Stream the responses; completed requests are removed from `left`."""
        assert slot.worker is not None
        slot.busy, count = True, len(left)
        try:
            for responses in slot.worker.stream(kind, list(left.values()), self._meter):
                pairs = [(left.pop(key), response) for key, response in responses if key in left]
                if self._canary is None:
                    self._canary = next((request for request, response in pairs if not response.failed), None)
                work.messages.put(pairs)
        finally:
            slot.busy = False
        if left and self._meter is None:
            raise ModelError(f"a worker answered {count - len(left)} of {count} requests")

    def _check_canary(self, slot: WorkerSlot) -> None:
        """Send a request that another worker completed; where it fails, drop the worker and raise WorkerLost."""
        if self._canary is None or slot.worker is None:
            return
        try:
            for _, response in chain.from_iterable(slot.worker.stream(self._canary.kind, [self._canary], None)):
                if response.failed:
                    raise WorkerLost(f"it fails on a request that another one answered: {response.error}")
        except (WorkerLost, ModelError) as error:
            self._drop(slot)
            raise WorkerLost(str(error)) from error

    def _ready(self, slot: WorkerSlot, work: WorkQueue) -> bool:
        """Start a worker where the slot has none; False where none is needed any more."""
        pause = FIRST_PAUSE_S
        while slot.worker is None and not work.over:
            try:
                self._start(slot, work)
            except WorkerLost as lost:
                work.messages.put(Loss(str(lost), started=False))
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
        return slot.worker is not None

    def _start(self, slot: WorkerSlot, work: WorkQueue) -> None:
        """One start at a time in each slot: a thread of an earlier stream may still be starting one."""
        while not slot.starting.acquire(timeout=POLL_S):
            if work.over:
                return
        try:
            if slot.worker is None:
                close_count = self._close_count
                slot.worker = self.start_worker(slot.number)
                if slot.was_lost:
                    self._check_canary(slot)
                if close_count != self._close_count:  # close() was called meanwhile
                    self._drop(slot)
        finally:
            slot.starting.release()

    def _drop(self, slot: WorkerSlot) -> None:
        worker, slot.worker, slot.was_lost = slot.worker, None, True
        if worker is not None:
            with contextlib.suppress(Exception):  # it is gone already
                worker.end()

    def warnings(self) -> list[str]:
        """Those of the workers' models, and how many workers died."""
        died = [f"workers that died and were replaced: {self._deaths}"] if self._deaths else []
        return [*self._warnings, *died]

    def execution_paths(self) -> dict[str, str]:
        """Those of each worker, by its number; a worker that died after its last bundle has none."""
        return {
            f"worker {number}: {stage}": path
            for number, paths in sorted(self._paths.items())
            for stage, path in paths.items()
        }

    def close(self) -> None:
        self._close_count += 1
        for slot in self.slots:
            self._drop(slot)
        self._join_threads()


SHARE = 0.7  # of an equal split, in the next chunk
_CHARACTERS_PER_TOKEN = 4


class WorkQueue:
    """Large chunks first and smaller ones towards the end, so that all workers finish together.

    Requests with the same media or a shared prefix are adjacent, and those with the same context are never split: a worker
    computes what they share once. Thread-safe.
    """

    def __init__(self, requests: Sequence[Request], workers: int) -> None:
        groups: dict[Context, list[Request]] = {}
        for request in requests:
            groups.setdefault(request.context, []).append(request)
        ordered = sorted(groups.values(), key=lambda group: group[0].prefix_order)
        self._untaken = deque((group, sum(map(_cost, group))) for group in ordered)
        self.groups = len(self._untaken)
        """The number of distinct contexts: more workers than that would be idle."""
        self._left = sum(cost for _, cost in self._untaken)
        self._smallest = self._left / (8 * workers) if workers > 1 else self._left
        self._workers = workers
        self._returned: deque[list[Request]] = deque()
        self._deaths: Counter[str] = Counter()
        self._open = len(requests)
        self._taken = 0
        self._closed = False
        self._changed = threading.Condition()
        self.messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        """From the workers to the reader of the stream."""

    def take(self) -> list[Request] | None:
        """The next chunk; None when every request is completed. Waits while other workers may still return some."""
        with self._changed:
            while not self._untaken and not self._returned and not self.over and not self._closed:
                self._changed.wait()
            if self.over or self._closed:
                return None
            self._taken += 1
            return self._returned.popleft() if self._returned else self._next()

    def done(self, count: int) -> None:
        """Count `count` more requests as completed."""
        with self._changed:
            self._open -= count
            self._changed.notify_all()

    @property
    def over(self) -> bool:
        """Whether every request is completed, or the work was stopped."""
        return self._open <= 0

    def leave(self) -> None:
        """A worker is done with its chunk."""
        with self._changed:
            self._taken -= 1

    def close(self) -> None:
        """Give out no more chunks; those that workers have are awaited."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def drained(self) -> bool:
        """Whether the work was closed and no worker has a chunk any more."""
        with self._changed:
            return self._closed and not self._taken

    def stop(self) -> None:
        """Hand out no more chunks, and await none."""
        with self._changed:
            self._open = 0
            self._changed.notify_all()

    def give_back(self, requests: Sequence[Request]) -> list[Request]:
        """Return the open requests of a worker that died. From their second death on, chunks are halved, until the request
        that kills workers is alone; after `MAX_DEATHS` it is not queued again, and returned to the caller."""
        with self._changed:
            self._deaths.update(request.key for request in requests)
            deaths = max((self._deaths[request.key] for request in requests), default=0)
            if len(requests) == 1 and deaths >= MAX_DEATHS:
                return list(requests)
            middle = (len(requests) + 1) // 2 if deaths > 1 else len(requests)
            self._return(requests[:middle], requests[middle:])
            return []

    def put_back(self, requests: Sequence[Request]) -> None:
        """Return the open requests of a worker that is alive."""
        with self._changed:
            self._return(requests)

    def _return(self, *parts: Sequence[Request]) -> None:
        self._returned.extend(list(part) for part in parts if part)
        self._changed.notify_all()

    def _next(self) -> list[Request]:
        wanted = max(self._smallest, SHARE * self._left / self._workers)
        chunk: list[Request] = []
        taken = 0.0
        while self._untaken and (not chunk or taken < wanted):
            group, cost = self._untaken.popleft()
            chunk += group
            taken += cost
        self._left -= taken
        return chunk


def _cost(request: Request) -> float:
    """A rough estimate of the time a request takes, in characters."""
    generated = int(request.options.get("max_gen_toks", 0)) if request.kind in (GENERATE, MULTI_ROUND) else 0
    return 1 + len(request.text) + len(request.continuation) + _CHARACTERS_PER_TOKEN * generated
