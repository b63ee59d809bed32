"""Running requests on a model: grouped by kind, equal ones once, known ones not at all, every answer stored at once."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Protocol

from mill.api.progress import Progress
from mill.api.request import Request
from mill.api.response import Response
from mill.execute.backend import Engine

WINDOW = 32768  # requests


class Store(Protocol):
    """Where answers are found and kept. `get` returns only what may be used again."""

    def get(self, request: Request) -> Response | None: ...

    def put(self, request: Request, response: Response) -> Response:
        """Keep an answer; what comes back is the answer as it was kept."""


@dataclass
class Tally:
    """What an execution did."""

    asked: int = 0
    known: int = 0
    computed: int = 0
    failed: int = 0
    padded: int = 0
    """Requests that only kept this rank in step with others, and were never scored."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    answering_s: float = 0.0
    """Seconds in which the model answered, loading left out."""


class Executor:
    """Runs requests of any number of tasks on one engine and attaches the answers to them (`resps`)."""

    def __init__(self, engine: Engine, store: Store, *, quiet: bool = False) -> None:
        self.engine, self.store, self.quiet = engine, store, quiet
        self.tally = Tally()

    def run(self, requests: Iterable[Request]) -> None:
        """Answer every request `repeats` times. Requests with equal content share one computation for each draw.

        Any number of requests may come: so many are held at once that what they share is found, and no more.
        """
        stream = iter(requests)
        while window := list(islice(stream, WINDOW)):
            by_kind: dict[str, list[Request]] = {}
            for request in window:
                by_kind.setdefault(request.kind, []).append(request)
            for kind, group in by_kind.items():
                self._run_kind(kind, group)

    def any_active(self, active: bool) -> bool:
        """Whether there is another wave: where several ranks run in step, one that has work left is enough."""
        return active

    def _run_kind(self, kind: str, requests: Sequence[Request]) -> None:
        clones = [request.clones() for request in requests]
        found: dict[str, Response] = {}
        pending: dict[str, Request] = {}
        for clone in chain.from_iterable(clones):
            self.tally.asked += 1
            key = clone.key
            if key in found or key in pending:
                continue
            known = self.store.get(clone)
            if known is not None:
                self.tally.known += 1
                found[key] = known
                self.engine.canary = clone
            else:
                pending[key] = clone
        self._compute(kind, list(pending.values()), found)
        for request, draws in zip(requests, clones, strict=True):
            request.resps[:] = [found[clone.key] for clone in draws]

    def _compute(self, kind: str, requests: list[Request], found: dict[str, Response]) -> None:
        if not requests:
            return
        self.engine.load()
        with Progress(kind, len(requests), quiet=self.quiet) as progress:
            watcher = Recorder(self.store, self.tally, progress, found)
            started = time.perf_counter()
            self.engine.answer(kind, requests, watcher)
            self.tally.answering_s += time.perf_counter() - started


class Recorder:
    """Stores each answer the moment it comes, before it counts as progress."""

    def __init__(self, store: Store, tally: Tally, progress: Progress, found: dict[str, Response]) -> None:
        self._store, self._tally, self._progress, self._found = store, tally, progress, found

    def answered(self, request: Request, response: Response) -> None:
        self._found[request.key] = self._store.put(request, response)
        self._tally.computed += 1
        self._tally.failed += response.failed
        self._tally.prompt_tokens += response.prompt_tokens or 0
        self._tally.output_tokens += response.output_tokens or 0
        self._progress.advance(failed=response.failed)
