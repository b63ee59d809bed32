"""Questions to a server that may fail, go away or fall silent: whose fault is it, the question's or the server's?

A question that fails while others are answered is an error of its own. As long as nobody knows, a failure is held back: who
ends a run because its server is broken must not leave errors behind that only mean that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mill.api.batching import GIVE_UP_AFTER, Observer, as_response, describe
from mill.api.errors import MillError, ModelBroken, ServerBroken, ServerGone
from mill.api.request import Request
from mill.api.response import Response
from mill.models.http import Failure, counted_calls

if TYPE_CHECKING:
    from mill.models.http.server import ServerModel

Ask = Callable[[Request], Awaitable[Response]]

MOST_OUTAGES = 2  # in a row, before the question that was asked alone is to blame
MOST_BLAMED = 3  # in a row, before the server itself is
MOST_FAILED = 16  # in a row, before it is asked something that it answered before


class RequestDispatcher:
    """Some questions of one kind. `found` has the answers by id() of their requests."""

    def __init__(self, server: ServerModel, ask: Ask, observer: Observer) -> None:
        self.server, self.ask, self.observer = server, ask, observer
        self.found: dict[int, Response] = {}
        self._held: list[tuple[float, Request, Response]] = []
        self._trusted, self._failures = 0.0, 0
        """Until when the server is known to answer, and how many questions have failed in a row."""

    def run(self, left: Sequence[Request]) -> None:
        """Until every question has its answer. One may be what ends the server: after an outage without a single answer they
        go one by one, and one that sees the server leave again and again is to blame."""
        outages = blamed = 0
        while left:
            answered = len(self.found)
            asked = left[:1] if outages else left
            self._looking = asyncio.Lock()  # of the event loop that follows
            try:
                self.server.client.run_all(asked, self._ask, self._done)
                self._settle()
                outages = blamed = 0
            except ServerBroken:
                raise
            except ServerGone as gone:
                self._held.clear()  # the outage may be why they failed
                self.server.wait_for_server(gone)
                outages = 0 if len(self.found) > answered else outages + 1
                if outages > MOST_OUTAGES:
                    outages, blamed = 1, blamed + 1
                    if blamed >= MOST_BLAMED:
                        raise ModelBroken(f"{self.server.base_url} goes away whatever it is asked: {gone}") from gone
                    self._tell(asked[0], Response(error=f"the server went away each of the last {MOST_OUTAGES} times"))
            left = [request for request in left if id(request) not in self.found]

    async def _ask(self, request: Request) -> Response:
        async with self._looking:
            started = time.monotonic()
        response = await response_to(request, self.ask)
        async with self._looking:
            await self._weigh(request, response, started)
        return response

    async def _weigh(self, request: Request, response: Response, started: float) -> None:
        """What an answer says of the server. While it is in doubt nobody goes on."""
        if not response.failed:
            self._failures, self._trusted = 0, max(self._trusted, started)
            if self.server.canary is None or len(request.text) < len(self.server.canary.text):
                self.server.canary = request
            return
        self._failures += 1
        if self.server.canary is None and self._failures >= GIVE_UP_AFTER:
            raise ModelBroken(f"the server failed on each of the first {self._failures} requests: {response.error}")
        if self.server.canary is not None and self._failures % MOST_FAILED == 0:
            began = time.monotonic()
            await self.server.health_check()
            self._trusted = max(self._trusted, began)

    def _done(self, request: Request, response: Any) -> None:
        if response.failed:
            self._held.append((time.monotonic(), request, response))
        else:
            self._tell(request, response)
        self._release(self._trusted)

    def _settle(self) -> None:
        """All were asked; the last ones failed."""
        if self._held and self.server.canary is not None:
            self.server.check_canary(self.server.canary)
        self._release(time.monotonic())

    def _release(self, trusted: float) -> None:
        """What failed before the server was asked something that it answered is the questions' own fault."""
        while self._held and self._held[0][0] <= trusted:
            _, request, response = self._held.pop(0)
            self._tell(request, response)

    def _tell(self, request: Request, response: Response) -> None:
        self.found[id(request)] = response
        self.observer.answered(request, response)


async def response_to(request: Request, ask: Ask) -> Response:
    """What comes of a question, failures included, with its retries and the time of all its calls."""
    with counted_calls() as calls:
        response = await _response_of(request, ask)
    seconds = response.seconds if response.seconds is None else calls.seconds
    return replace(response, retries=calls.retries, seconds=seconds) if calls.retries or seconds else response


async def _response_of(request: Request, ask: Ask) -> Response:
    """An answer of a shape that nobody foresaw is an error of its request."""
    try:
        return as_response(await ask(request), request.kind)
    except MillError:
        raise
    except Failure as failure:
        return Response(error=str(failure))
    except Exception as error:
        return Response(error=f"the server's answer could not be read: {describe(error)}")
