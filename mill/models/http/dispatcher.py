"""Sends requests to a server and streams their responses, also through outages.

A request that fails while others succeed is an error of its own. As long as it may be the server that fails, the error is
held back: a run that ends because its server is broken must not record errors that only mean that.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from mill.api.batching import Answered
from mill.api.errors import ModelBroken, ServerBroken, ServerGone
from mill.api.request import Request
from mill.api.response import Response
from mill.models.http.breaker import CheckedServer, CircuitBreaker
from mill.models.http.client import Client

MAX_OUTAGES = 2  # in a row, before the request that was sent alone is to blame
MAX_BLAMED = 3  # requests in a row, before the server itself is


class DispatchedServer(CheckedServer, Protocol):
    """What the dispatcher needs of a server."""

    client: Client

    def wait_for_server(self, gone: ServerGone) -> None:
        """Return when the server is back with the same model; raises where it does not come back."""

    def check_canary(self, canary: Request) -> None: ...


class RequestDispatcher:
    """Some requests of one kind to one server."""

    def __init__(self, server: DispatchedServer) -> None:
        self._server = server
        self._breaker = CircuitBreaker(server, verifies=server.client.verifies)
        self._held: deque[tuple[float, Request, Response]] = deque()

    def stream(self, requests: Sequence[Request]) -> Iterator[Answered]:
        """Every request with its response. A request may be what crashes the server: after an outage in which nothing was
        answered, requests are sent one by one, and one that sees the server crash again and again is an error."""
        outages = blamed = 0
        left = {request.key: request for request in requests}
        while left:
            answered = 0
            sent = list(left.values())[: 1 if outages else None]
            try:
                for request, response in self._send_all(sent):
                    answered += 1
                    del left[request.key]
                    yield request, response
                outages = blamed = 0
            except ServerBroken:
                raise
            except ServerGone as gone:
                self._held.clear()  # the outage may be why they failed: they are sent again
                self._server.wait_for_server(gone)
                outages = 0 if answered else outages + 1
                if outages > MAX_OUTAGES:
                    outages, blamed = 1, blamed + 1
                    if blamed >= MAX_BLAMED:
                        raise ModelBroken(f"{self._server.base_url} crashed on every request: {gone}") from gone
                    del left[sent[0].key]
                    yield sent[0], Response(error=f"the server crashed on this request {MAX_OUTAGES + 1} times")

    def _send_all(self, requests: Sequence[Request]) -> Iterator[Answered]:
        self._breaker.reset()
        for request, (response, completed) in self._server.client.run_all(requests, self._send, self._breaker):
            if response.failed:
                self._held.append((completed, request, response))
            else:
                yield request, response
            yield from self._release(self._breaker.healthy_at)
        if self._held and self._server.canary is not None:
            self._server.check_canary(self._server.canary)
        yield from self._release(time.monotonic())

    async def _send(self, request: Request) -> tuple[Response, float]:
        return await self._breaker.send(request), time.monotonic()

    def _release(self, healthy_at: float) -> Iterator[Answered]:
        """What failed before the server was seen to answer is an error of its request."""
        while self._held and self._held[0][0] <= healthy_at:
            _, request, response = self._held.popleft()
            yield request, response
