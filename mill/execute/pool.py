"""An executor backend of several workers that each hold the model: a queue of chunks, and responses in one stream.

A worker that dies is replaced, and the requests that it had not answered go to others.
"""

from __future__ import annotations

import contextlib
import contextvars
import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain, islice

from mill.api.batching import Completed
from mill.api.budget import CallMeter
from mill.api.errors import MillError, ModelBroken, ModelError
from mill.api.model import StreamContext
from mill.api.request import Request
from mill.api.response import Response
from mill.execute.executor import ExecutorBackend
from mill.execute.workers import MAX_DEATHS, Worker, WorkerLost, WorkQueue
from mill.support.terminal import describe, warn

POLL_S = 0.2
LEAVE_S = 2.0
MAX_FAILED_CHUNKS = 2  # before a worker waits until another one completes a request
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 20.0  # before a lost worker is replaced


class WorkerState(Enum):
    """The state of one slot, in which a lost worker is replaced by a new one."""

    STOPPED = "not started yet, or closed"
    IDLE = "started, without a chunk"
    BUSY = "computes a chunk"
    SUSPECT = "failed on every request of several chunks"
    LOST = "died, or could not start; a new worker is started when there is work"


@dataclass(eq=False)
class WorkerSlot:
    number: int
    state: WorkerState = WorkerState.STOPPED
    worker: Worker | None = None
    failed_chunks: int = 0
    was_lost: bool = False
    starting: threading.Lock = field(default_factory=threading.Lock)


# Messages from the threads of the workers to the thread that reads the stream.


@dataclass(frozen=True)
class NewResponses:
    pairs: list[Completed]


@dataclass(frozen=True)
class WorkerDied:
    reason: str
    started: bool
    """Whether it had started; False where a worker could not be started."""


@dataclass(frozen=True)
class PoolFailed:
    error: MillError


Message = NewResponses | WorkerDied | PoolFailed


class Pool(ExecutorBackend):
    """`start_worker(n)` starts worker number n and returns when it is ready; it raises WorkerLost or a MillError. Workers
    start at the first stream, in parallel; those that are ready do not wait for the others.

    Workers of `servers` must answer the canary after a loss before they get work again: a server may be up and fail. With
    `meters_calls` the workers are threads whose models ask the meter.
    """

    def __init__(
        self, start_worker: Callable[[int], Worker], workers: int, *, servers: bool = False, meters_calls: bool = False
    ) -> None:
        self.start_worker, self.workers, self.servers = start_worker, workers, servers
        self.slots = [WorkerSlot(number) for number in range(workers)]
        self._canary: Request | None = None
        self._meter: CallMeter | None = None
        self.meters_calls = meters_calls
        self._close_count = 0
        self._threads: list[threading.Thread] = []
        self._messages: queue.Queue[Message] = queue.Queue()
        self._warnings: dict[str, None] = {}
        self._paths: dict[int, dict[str, str]] = {}
        self._deaths = 0

    def stream(self, kind: str, requests: Sequence[Request], context: StreamContext) -> Generator[Completed, None, None]:
        self._meter, self._canary = context.meter, self._canary or context.recorded
        work = WorkQueue(requests, self.workers)
        self._messages, self._threads = queue.Queue(), []
        for slot in self.slots:
            slot.failed_chunks = 0
        unused = iter(sorted(self.slots, key=lambda slot: slot.worker is None and slot.was_lost))

        def start_thread() -> None:
            """Start one more worker, where one has no thread yet."""
            for slot in islice(unused, 1):
                given = (self._work, slot, kind, work, self._messages)
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

    def undelivered(self) -> list[Completed]:
        arrived: list[Completed] = []
        with contextlib.suppress(queue.Empty):
            while True:
                message = self._messages.get_nowait()
                arrived += message.pairs if isinstance(message, NewResponses) else []
        return arrived

    def _receive(self, work: WorkQueue, total: int, start_thread: Callable[[], None]) -> Iterator[Completed]:
        """Yield responses until all have arrived, in the thread that reads the stream."""
        received, deaths = 0, 0
        while received < total and not (work.drained and self._messages.empty()):
            message = self._messages.get()
            if isinstance(message, PoolFailed):
                raise message.error
            if isinstance(message, WorkerDied):
                self._deaths += message.started
                # While another worker computes a chunk, one that cannot start is no reason to stop.
                deaths += message.started or not any(slot.state is WorkerState.BUSY for slot in self.slots)
                if deaths > MAX_DEATHS * self.workers + MAX_DEATHS:
                    raise ModelError(f"{deaths} workers died and none has answered since: {message.reason}")
                event = "died" if message.started else "could not start"
                action = "another one continues with its requests" if message.started else "it is tried again"
                warn(f"a worker {event} ({message.reason}); {action}")
                start_thread()
                continue
            yield from message.pairs
            if message.pairs:
                received, deaths = received + len(message.pairs), 0
            work.done(len(message.pairs))

    def _join_threads(self) -> None:
        """Wait briefly for the threads; one may still be waiting for a machine."""
        until = time.monotonic() + LEAVE_S
        for thread in self._threads:
            thread.join(timeout=max(0.0, until - time.monotonic()))

    # The thread of one worker.

    def _work(self, slot: WorkerSlot, kind: str, work: WorkQueue, messages: queue.Queue[Message]) -> None:
        """Compute chunks until none is left. A worker takes one only when it is ready, not while it waits for a machine."""
        while self._ready(slot, work, messages) and (chunk := work.take()) is not None:
            left = {request.key: request for request in chunk}
            try:
                self._run_chunk(slot, kind, chunk, left, messages)
                if left:
                    work.close()  # there was no room for the others
            except WorkerLost as lost:
                self._drop(slot)
                messages.put(WorkerDied(str(lost), started=True))
                error = f"the worker died each of the {MAX_DEATHS} times it got this request: {lost}"
                given_up = work.give_back(list(left.values()))
                messages.put(NewResponses([(request, Response(error=error)) for request in given_up]))
            except ModelBroken as broken:
                work.put_back(list(left.values()))  # the chunk may hold only bad requests: others may succeed
                slot.failed_chunks += 1
                if not self._wait_for_canary(slot, work):
                    messages.put(PoolFailed(broken))
                    return
                try:
                    self._check_canary(slot)
                except WorkerLost as lost:
                    messages.put(WorkerDied(str(lost), started=True))
            except BaseException as error:
                messages.put(_failure(error))
                return
            finally:
                work.leave()
        messages.put(NewResponses([]))  # the reader then checks whether the work was closed
        if slot.worker is not None:
            with contextlib.suppress(WorkerLost):
                warnings, self._paths[slot.number] = slot.worker.report()
                self._warnings |= dict.fromkeys(warnings)

    def _run_chunk(
        self, slot: WorkerSlot, kind: str, chunk: list[Request], left: dict[str, Request], messages: queue.Queue[Message]
    ) -> None:
        """Stream the responses; completed requests are removed from `left`."""
        assert slot.worker is not None
        slot.state = WorkerState.BUSY
        try:
            for responses in slot.worker.stream(kind, chunk, self._meter):
                pairs = [(left.pop(key), response) for key, response in responses if key in left]
                if self._canary is None:
                    self._canary = next((request for request, response in pairs if not response.failed), None)
                messages.put(NewResponses(pairs))
        finally:
            slot.state = WorkerState.IDLE
        if left and self._meter is None:
            raise ModelError(f"a worker answered {len(chunk) - len(left)} of {len(chunk)} requests")

    def _wait_for_canary(self, slot: WorkerSlot, work: WorkQueue) -> bool:
        """Whether a worker that failed on whole chunks may continue: another one has completed a request, or still may."""
        if slot.failed_chunks < MAX_FAILED_CHUNKS:
            return True
        slot.state = WorkerState.SUSPECT
        while self._canary is None and not work.over:
            if sum(other.state is WorkerState.SUSPECT for other in self.slots) >= len(self._threads):
                return False
            time.sleep(POLL_S)
        slot.state = WorkerState.IDLE
        return True

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

    def _ready(self, slot: WorkerSlot, work: WorkQueue, messages: queue.Queue[Message]) -> bool:
        """Start a worker where the slot has none; False where none is needed any more."""
        pause = FIRST_PAUSE_S
        while slot.worker is None and not work.over:
            try:
                self._start(slot, work)
            except WorkerLost as lost:
                messages.put(WorkerDied(str(lost), started=False))
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
            except BaseException as error:
                messages.put(_failure(error))
                return False
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
                slot.state = WorkerState.IDLE
                if self.servers and slot.was_lost:
                    self._check_canary(slot)
                if close_count != self._close_count:  # close() was called meanwhile
                    self._drop(slot)
        finally:
            slot.starting.release()

    def _drop(self, slot: WorkerSlot) -> None:
        worker, slot.worker = slot.worker, None
        slot.state, slot.was_lost = WorkerState.LOST, True
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
        self._join_threads()  # before the pool leaves the cluster that a thread uses


def _failure(error: BaseException) -> PoolFailed:
    return PoolFailed(error if isinstance(error, MillError) else ModelError(f"a worker failed: {describe(error)}"))
