"""The circuit breaker of a server: it decides whether a request failed, or the server."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from mill.api.batching import GIVE_UP_AFTER
from mill.api.errors import ModelBroken, ServerBroken, ServerGone
from mill.api.request import Request
from mill.api.response import Response

FAILURES_IN_A_ROW = 16  # before the canary is sent
RECHECK_PAUSES_S = (1.0, 4.0)  # between canary requests, before the server counts as broken
LONG_CHECK_S = 30.0  # a check that takes this long is not repeated


class CheckedServer(Protocol):
    """What the breaker needs of a server."""

    base_url: str
    canary: Request | None
    """A request that the server has answered."""

    async def send(self, request: Request) -> Response:
        """The response to a request; a failure is a response too."""

    def verify(self) -> None:
        """Raise where the server is unreachable or has another model than before. Runs in a thread."""


class CircuitBreaker:
    """Watches every call and every request to one server, on one event loop at a time.

    | state | entered when | what happens | left when |
    | --- | --- | --- | --- |
    | untested | no request has succeeded yet | requests pass | a request succeeds: closed; the first `GIVE_UP_AFTER` all fail: open |
    | closed | a request or a check succeeds | requests pass; a failure is an error of its request | a connection fails or `FAILURES_IN_A_ROW` requests fail: half-open |
    | half-open, connection | a connection was cut or refused | one `verify` runs, all calls wait | same model: closed; unreachable: open (ServerGone); another model: open (ModelError) |
    | half-open, canary | too many requests failed in a row | the canary is sent, all requests wait | it succeeds: closed; only after a pause: open (ServerGone, there was an outage); not at all: open (ServerBroken) |
    | open | see above | the error is raised by every call that waits | the dispatcher starts again on a new event loop |
    """  # noqa: E501

    def __init__(self, server: CheckedServer, *, verifies: bool = True) -> None:
        self._server, self._verifies = server, verifies
        self._failures = 0
        self.healthy_at = 0.0
        """When the server was last known to be healthy; earlier failures are errors of their requests."""
        self.reset()

    def reset(self) -> None:
        """Close the breaker for a new event loop; locks belong to one loop."""
        self._connection_check, self._canary_check = asyncio.Lock(), asyncio.Lock()
        self._verified = 0
        self._error: Exception | None = None

    # Single calls, of which a request may need several.

    async def call_succeeded(self) -> None:
        """Wait for a running check of the connection: the response may come from another server at the same address."""
        async with self._connection_check:
            if self._error is not None:
                raise self._error

    async def connection_failed(self) -> None:
        """Verify the server, unless another call did so meanwhile."""
        if not self._verifies:
            return
        verified = self._verified
        async with self._connection_check:
            if self._error is None and verified == self._verified:
                try:
                    await asyncio.to_thread(self._server.verify)
                except Exception as error:
                    self._error = error
                self._verified += 1
            if self._error is not None:
                raise self._error

    # Requests.

    async def send(self, request: Request) -> Response:
        """The response to a request; raises where the server fails, not the request."""
        async with self._canary_check:
            started = time.monotonic()
        response = await self._server.send(request)
        async with self._canary_check:
            if response.failed:
                await self._request_failed(response)
            else:
                self._request_succeeded(request, started)
        return response

    def _request_succeeded(self, request: Request, started: float) -> None:
        self._failures, self.healthy_at = 0, max(self.healthy_at, started)
        canary = self._server.canary
        if canary is None or len(request.text) < len(canary.text):  # a short one is cheap to send again
            self._server.canary = request

    async def _request_failed(self, response: Response) -> None:
        self._failures += 1
        if self._server.canary is None:
            if self._failures >= GIVE_UP_AFTER:
                raise ModelBroken(f"the server failed on each of the first {self._failures} requests: {response.error}")
        elif self._failures % FAILURES_IN_A_ROW == 0:
            await self.check_canary()

    async def check_canary(self) -> None:
        """Send a request that the server answered before."""
        assert self._server.canary is not None
        started = time.monotonic()
        for pause in (0.0, *RECHECK_PAUSES_S):
            await asyncio.sleep(pause)
            error = (await self._server.send(self._server.canary)).error
            if error is None and pause:
                raise ServerGone(f"{self._server.base_url} failed on every request for a while")
            if error is None:
                self.healthy_at = max(self.healthy_at, started)
                return
            if time.monotonic() - started > LONG_CHECK_S:
                break
        raise ServerBroken(f"{self._server.base_url} fails on every request, even on one that it answered before: {error}")
