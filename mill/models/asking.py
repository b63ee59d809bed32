"""Questions to a server that may fail, go away or fall silent: whose fault is it, the question's or the server's?

A question that fails while others are answered is an error of its own. As long as nobody knows, a failure is held back: who
ends a run because its server is broken must not leave errors behind that only mean that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from mill.api.batching import GIVE_UP_AFTER, Observer, as_response, describe
from mill.api.errors import MillError, ModelBroken, ServerBroken, ServerGone
from mill.api.request import Request
from mill.api.response import Response
from mill.models.http import Failure

if TYPE_CHECKING:
    from mill.models.server import ServerModel

Ask = Callable[[Request], Awaitable[Response]]

MOST_OUTAGES = 2  # in a row, before the question that was asked alone is to blame
MOST_BLAMED = 3  # in a row, before the server itself is
MOST_FAILED = 16  # in a row, before it is asked something that it answered before


class Asking:
    """Some questions of one kind. `found` has the answers by id() of their requests."""

    def __init__(self, server: ServerModel, ask: Ask, observer: Observer) -> None:
        self.server, self.ask, self.observer = server, ask, observer
        self.found: dict[int, Response] = {}
        self._held: list[tuple[Request, Response]] = []
        self._failures = 0
        self._trusted = False

    def run(self, left: Sequence[Request]) -> None:
        """Until every question has its answer. One may be what ends the server: after an outage without a single answer they
        go one by one, and one that sees the server leave again and again is to blame."""
        outages = blamed = 0
        while left:
            answered = len(self.found)
            asked = left[:1] if outages else left
            try:
                self.server.client.run_all(asked, self._ask, self._done)
                self._settle()
                outages = blamed = 0
            except ServerBroken:
                raise
            except ServerGone as gone:
                self._held.clear()  # the outage may be why they failed
                self.server.await_return(gone)
                outages = 0 if len(self.found) > answered else outages + 1
                if outages > MOST_OUTAGES:
                    outages, blamed = 1, blamed + 1
                    if blamed >= MOST_BLAMED:
                        raise ModelBroken(f"{self.server.base_url} goes away whatever it is asked: {gone}") from gone
                    self._tell(asked[0], Response(error=f"the server went away each of the last {MOST_OUTAGES} times"))
            left = [request for request in left if id(request) not in self.found]

    async def _ask(self, request: Request) -> Response:
        response = await answer_of(request, self.ask)
        if not response.failed:
            self._failures, self.server.proof = 0, request
            return response
        self._failures += 1
        if self.server.proof is None and self._failures >= GIVE_UP_AFTER:
            raise ModelBroken(f"the server failed on each of the first {self._failures} requests: {response.error}")
        if self.server.proof is not None and self._failures % MOST_FAILED == 0:
            await self.server.ask_again()
            self._trusted = True
        return response

    def _done(self, request: Request, response: Any) -> None:
        if response.failed:
            self._held.append((request, response))
        if self._trusted or not response.failed:
            self._release()
        if not response.failed:
            self._tell(request, response)

    def _settle(self) -> None:
        """All were asked; the last ones failed."""
        if self._held and self.server.proof is not None:
            self.server.prove(self.server.proof)
        self._release()

    def _release(self) -> None:
        """The server answers: what failed is the questions' own fault."""
        held, self._held, self._trusted = self._held, [], False
        for request, response in held:
            self._tell(request, response)

    def _tell(self, request: Request, response: Response) -> None:
        self.found[id(request)] = response
        self.observer.answered(request, response)


async def answer_of(request: Request, ask: Ask) -> Response:
    """What comes of a question, failures included. An answer of a shape that nobody foresaw is an error of its request."""
    try:
        return as_response(await ask(request), request.kind)
    except MillError:
        raise
    except Failure as failure:
        return Response(error=str(failure))
    except Exception as error:
        return Response(error=f"the server's answer could not be read: {describe(error)}")
