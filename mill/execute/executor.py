"""Runs requests on a model: grouped by kind, equal ones once, recorded ones not at all, each response stored at once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Protocol

from mill.api.batching import Answered
from mill.api.errors import MillError
from mill.api.progress import Progress
from mill.api.request import Request
from mill.api.response import Response
from mill.execute.backend import ExecutorBackend

WINDOW = 32768  # requests


class Store(Protocol):
    """Where responses are stored. `get` returns only what may be reused."""

    def get(self, request: Request) -> Response | None: ...

    def put(self, request: Request, response: Response) -> Response:
        """Store a response; returns it as it was stored."""


@dataclass
class Tally:
    """What an execution did."""

    asked: int = 0
    known: int = 0
    computed: int = 0
    failed: int = 0
    padded: int = 0
    """Requests that only kept this rank in lock-step with others, and were never scored."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    answering_s: float = 0.0
    """Seconds in which the model answered, loading left out."""


class Executor:
    """Runs requests of any number of tasks on one backend and attaches the responses to them (`resps`)."""

    def __init__(self, backend: ExecutorBackend, store: Store, *, quiet: bool = False) -> None:
        self.backend, self.store, self.quiet = backend, store, quiet
        self.tally = Tally()

    def run(self, requests: Iterable[Request]) -> None:
        """Answer every request `repeats` times. Requests with equal content share one computation for each draw.

        Any number of requests may come: they are taken in windows that are large enough to find shared prefixes.
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
                self.backend.canary = clone
            else:
                pending[key] = clone
        self._compute(kind, list(pending.values()), found)
        for request, draws in zip(requests, clones, strict=True):
            request.resps[:] = [found[clone.key] for clone in draws]

    def _compute(self, kind: str, requests: list[Request], found: dict[str, Response]) -> None:
        if requests:
            self.backend.load()
            with Progress(kind, len(requests), quiet=self.quiet) as progress:
                started = time.perf_counter()
                self._record_all(self.backend.stream(kind, requests), found, progress)
                self.tally.answering_s += time.perf_counter() - started

    def _record_all(self, stream: Generator[Answered, None, None], found: dict[str, Response], progress: Progress) -> None:
        """Store each response the moment it comes, before it counts as progress."""
        try:
            for request, response in stream:
                self._record(request, response, found)
                progress.advance(failed=response.failed)
        except BaseException:
            stream.close()
            with contextlib.suppress(MillError):  # the reason for the end may be a full disk
                for request, response in self.backend.undelivered():
                    self._record(request, response, found)
            raise

    def _record(self, request: Request, response: Response, found: dict[str, Response]) -> None:
        found[request.key] = self.store.put(request, response)
        self.tally.computed += 1
        self.tally.failed += response.failed
        self.tally.prompt_tokens += response.prompt_tokens or 0
        self.tally.output_tokens += response.output_tokens or 0
