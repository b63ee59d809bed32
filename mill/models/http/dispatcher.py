"""Sends requests to a server and streams their responses, also through outages.

A request that fails while others succeed is an error. While the server may be the cause, the error is held back: a run that
ends because its server is broken must not record the requests as errors.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Protocol

from mill.api.batching import Completed
from mill.api.budget import BudgetReached, CallMeter
from mill.api.errors import ModelBroken, ServerBroken, ServerGone
from mill.api.request import Request
from mill.api.response import Response
from mill.models.http.breaker import CheckedServer, CircuitBreaker
from mill.models.http.client import Client

MAX_OUTAGES = 2  # in a row, before the request that was sent alone counts as the cause
MAX_CRASHING = 3  # such requests in a row, before the server counts as broken


class DispatchedServer(CheckedServer, Protocol):
    """What the dispatcher needs of a server."""

    client: Client

    def wait_for_server(self, gone: ServerGone) -> None:
        """Return when the server is back with the same model; raise where it does not return."""

    def check_canary(self, canary: Request) -> None: ...


class RequestDispatcher:
    """Sends requests of one kind to one server. Where the meter has no room for one, what is in flight is awaited, and the
    others get no response."""

    def __init__(self, server: DispatchedServer, meter: CallMeter | None = None) -> None:
        self._server, self._meter = server, meter
        self._refused = False
        self._breaker = CircuitBreaker(server, verifies=server.client.verifies)
        self._held: deque[tuple[float, Request, Response]] = deque()

    def stream(self, requests: Sequence[Request]) -> Iterator[Completed]:
        """Every request with its response. A request may crash the server: after an outage without any response, requests
        are sent one by one, and one on which the server crashes repeatedly is an error."""
        outages = crashing = 0
        left = {request.key: request for request in requests}
        while left and not self._refused:
            completed = 0
            sent = list(left.values())[: 1 if outages else None]
            try:
                for request, response in self._send_all(sent):
                    completed += 1
                    del left[request.key]
                    yield request, response
                outages = crashing = 0
            except ServerBroken:
                raise
            except ServerGone as gone:
                self._held.clear()  # the outage may be the cause: these requests are sent again
                try:
                    self._server.wait_for_server(gone)
                except BudgetReached:
                    return
                outages = 0 if completed else outages + 1
                if outages > MAX_OUTAGES:
                    outages, crashing = 1, crashing + 1
                    if crashing >= MAX_CRASHING:
                        raise ModelBroken(f"{self._server.base_url} crashed on every request: {gone}") from gone
                    del left[sent[0].key]
                    yield sent[0], Response(error=f"the server crashed on this request {MAX_OUTAGES + 1} times")

    def _send_all(self, requests: Sequence[Request]) -> Iterator[Completed]:
        self._breaker.reset()
        sent = takewhile(self._room, requests)
        for request, (response, completed) in self._server.client.run_all(sent, self._send, self._breaker):
            if response is None:
                continue
            if response.failed:
                self._held.append((completed, request, response))
            else:
                yield request, response
            yield from self._release(self._breaker.healthy_at)
        if self._held and self._server.canary is not None:
            try:
                self._server.check_canary(self._server.canary)
            except BudgetReached:
                self._refused = True
                self._held.clear()  # nothing shows that these requests are the cause
        yield from self._release(time.monotonic())

    def _room(self, request: Request) -> bool:
        self._refused = self._refused or (self._meter is not None and not self._meter.room(request))
        return not self._refused

    async def _send(self, request: Request) -> tuple[Response | None, float]:
        """Without a response where the request, or its retry, may not be sent."""
        try:
            return await self._breaker.send(request), time.monotonic()
        except BudgetReached:
            self._refused = True
            return None, time.monotonic()

    def _release(self, healthy_at: float) -> Iterator[Completed]:
        """Failures from before the server was last healthy are errors of their requests."""
        while self._held and self._held[0][0] <= healthy_at:
            _, request, response = self._held.popleft()
            yield request, response
