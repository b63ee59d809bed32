"""Workers that each hold a model, and the requests that they share: taken in chunks, returned by a worker that died."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from mill.api.budget import CallMeter
from mill.api.errors import MillError, ModelError, ServerGone
from mill.api.identity import identity_of
from mill.api.message import Context
from mill.api.model import HasPaths, MillModel, StreamContext, run_requests
from mill.api.request import GENERATE, MULTI_ROUND, Request
from mill.api.response import Response
from mill.models.spec.open import open_model
from mill.models.spec.parse import Spec

RETURN_S = 30.0  # a new worker waits so long for its server to come back

Keyed = tuple[str, Response]
"""A response with the key of its request, which identifies the request across processes."""


Report = tuple[list[str], dict[str, str]]
"""The warnings of a worker's model, and which of its execution paths computed the answers, by stage."""


class WorkerLost(Exception):
    """A worker died or its server is gone; the cause need not be a request."""


class Worker(Protocol):
    """One worker."""

    def stream(self, kind: str, requests: Sequence[Request], meter: CallMeter | None) -> Iterator[list[Keyed]]:
        """The responses to a chunk as they arrive. Raises WorkerLost if the worker dies, MillError if the model fails. A
        worker in this process asks the meter before each request."""

    def report(self) -> Report: ...

    def end(self) -> None: ...


def worker_context() -> StreamContext:
    """A worker does not wait for a server that is gone: other workers continue."""
    return StreamContext(outage_patience_s=0.0)


def stream_chunk(model: MillModel, kind: str, requests: Sequence[Request], context: StreamContext) -> Iterator[list[Keyed]]:
    """A model's responses to a chunk. A server that cannot be reached is a lost worker: others may reach theirs."""
    try:
        for request, response in run_requests(model, kind, requests, context):
            yield [(request.key, response)]
    except ServerGone as gone:
        raise WorkerLost(str(gone)) from gone


def open_replica(spec: Spec, batch_size: int | None, identity: Mapping[str, Any]) -> MillModel:
    """A worker's model, ready to load, which must have this identity."""
    model = open_model(spec, batch_size=batch_size)
    try:
        model.ready(RETURN_S)
    except MillError as error:
        if model.is_server:  # it was up when the run was planned
            raise WorkerLost(str(error)) from error
        raise
    if portable_identity(model) != identity:
        raise ModelError(f"a worker finds another model under {spec.backend} than the command does")
    return model


def portable_identity(model: MillModel) -> dict[str, Any]:
    """A model's identity without the addresses of its servers."""

    def without_addresses(values: Mapping[str, Any]) -> dict[str, Any]:
        portable = {name: value for name, value in values.items() if name not in ("base_url", "api_base")}
        return {name: without_addresses(value) if isinstance(value, Mapping) else value for name, value in portable.items()}

    return without_addresses(identity_of(model))


class LocalWorker:
    """A worker that is a thread of this process, for a model on a server."""

    def __init__(self, model: MillModel) -> None:
        self.model, self._context = model, worker_context()

    def stream(self, kind: str, requests: Sequence[Request], meter: CallMeter | None) -> Iterator[list[Keyed]]:
        self._context.meter = meter
        return stream_chunk(self.model, kind, requests, self._context)

    def report(self) -> Report:
        return self.model.warnings(), self.model.execution_paths() if isinstance(self.model, HasPaths) else {}

    def end(self) -> None:
        self.model.clean()


MAX_DEATHS = 3  # of workers on one request, before it is an error
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
