"""What is done where a server fails: calls are sent again, fewer are in flight, the server is checked, or waited for.

A request that fails while others succeed is an error. While the server may be the cause, the error is held back: a run that
ends because its server is broken must not record the requests as errors.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING

from mill.api.batching import GIVE_UP_AFTER, Completed
from mill.api.budget import BudgetReached
from mill.api.errors import ModelBroken, ServerBroken, ServerGone
from mill.api.model import StreamContext
from mill.api.request import Request
from mill.api.response import Response
from mill.models.http.failures import Failure
from mill.support.terminal import warn

if TYPE_CHECKING:
    from mill.models.http.client import Client, Reply
    from mill.models.http.server import ServerModel

ATTEMPTS = 6
THROTTLED_ATTEMPTS = 24  # a busy server is retried for some minutes
TIMEOUT_ATTEMPTS = 2  # a timeout has cost minutes already
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 20.0
LONGEST_REFUSAL_S = 600.0  # that a server may ask for (429, 503)
REPORTED_AFTER_S = 10.0  # the shortest pause after a refusal that is worth a warning
FAILURES_IN_A_ROW = 16  # before the canary is sent
RECHECK_PAUSES_S = (1.0, 4.0)  # between canary requests, before the server counts as broken
LONG_CHECK_S = 30.0  # a check that takes this long is not repeated
MAX_OUTAGES = 2  # in a row, before the request that was sent alone counts as the cause
MAX_CRASHING = 3  # such requests in a row, before the server counts as broken


@dataclass
class Calls:
    """Totals over the calls of one request, and why the last one was retried. `before_retry` may refuse one by raising."""

    retries: int = 0
    retry_reason: str | None = None
    seconds: float = 0.0
    before_retry: Callable[[], None] | None = None


_calls: ContextVar[Calls | None] = ContextVar("calls", default=None)


@contextmanager
def counted_calls(before_retry: Callable[[], None] | None = None) -> Iterator[Calls]:
    """Count the calls that the code in this block makes, in all coroutines it awaits."""
    calls = Calls(before_retry=before_retry)
    token = _calls.set(calls)
    try:
        yield calls
    finally:
        _calls.reset(token)


class ServerPolicy:
    """Watches every call and every request to one server, on one event loop at a time. Without a server, calls are retried
    and nothing is checked.

    | state | entered when | what happens | left when |
    | --- | --- | --- | --- |
    | untested | no request has succeeded yet | requests pass | a request succeeds: closed; the first `GIVE_UP_AFTER` all fail: open |
    | closed | a request or a check succeeds | requests pass; a failure is an error of its request | a connection fails or `FAILURES_IN_A_ROW` requests fail: half-open |
    | half-open, connection | a connection was cut or refused | one `verify` runs, all calls wait | same model: closed; unreachable: open (ServerGone); another model: open (ModelError) |
    | half-open, canary | too many requests failed in a row | the canary is sent, all requests wait | it succeeds: closed; only after a pause: open (ServerGone, there was an outage); not at all: open (ServerBroken) |
    | open | see above | the error is raised by every call that waits; after ServerGone the server is waited for | requests without a response are sent again, on a new event loop |
    """  # noqa: E501

    def __init__(self, client: Client, server: ServerModel | None = None, context: StreamContext | None = None) -> None:
        self._client, self._server, self._context = client, server, context or StreamContext()
        self._failures = 0  # of requests, in a row
        self._healthy_at = 0.0  # when the server was last known to be healthy
        self._held: deque[tuple[float, Request, Response]] = deque()  # failures since then
        self._no_room = False

    def open(self) -> None:
        """For a new event loop, to which locks belong."""
        maximum = self._client.concurrency
        self._limiter = ConcurrencyLimiter(maximum, first=maximum if self._client.steady else FIRST_LIMIT)
        self._connection_check, self._canary_check = asyncio.Lock(), asyncio.Lock()
        self._verified = 0
        self._error: Exception | None = None

    # Single calls, of which a request may need several.

    async def call(self, send: Callable[[], Awaitable[Reply]]) -> Reply:
        """A call within the concurrency limit, retried with a growing pause while its Failure is transient. After a failed
        connection the server is verified before its next response counts: another server may have replaced it."""
        pause, tries, first, calls = FIRST_PAUSE_S, Counter[int](), None, _calls.get() or Calls()
        while True:
            await self._limiter.enter()
            ok = False
            try:
                await self._limiter.until_open()
                sent = time.perf_counter()
                first = sent if first is None else first
                reply = await send()
                async with self._connection_check:  # the response may come from another server at the same address
                    self._raise_error()
                ok = True
                calls.seconds += sent - first + reply.seconds
                return reply.after(sent - first)
            except Failure as failure:
                if failure.unreachable:
                    await self._connection_failed()
                limit = TIMEOUT_ATTEMPTS if failure.kind == "timeout" else ATTEMPTS
                alone = self._context.outage_patience_s > 0  # else other servers take over what this one refuses
                limit = THROTTLED_ATTEMPTS if failure.throttled and alone else limit
                tries[limit] += 1  # each kind of failure has its own count
                if failure.throttled and not alone and tries[limit] >= limit:
                    raise ServerBroken(str(failure)) from failure
                if not failure.transient or tries[limit] >= limit:
                    raise
                if failure.throttled:
                    self._refused(failure, failure.retry_after or pause)
                    await self._limiter.push_back(failure.retry_after)
                if failure.kind != "connection" and calls.before_retry is not None:  # else it was never sent
                    calls.before_retry()
                reason = str(failure)
            finally:
                await self._limiter.leave(ok=ok)
            calls.retries += 1
            calls.retry_reason = reason
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _connection_failed(self) -> None:
        """Verify the server, unless another call did so meanwhile."""
        if self._server is None:
            return
        verified = self._verified
        async with self._connection_check:
            if self._error is None and verified == self._verified:
                try:
                    await asyncio.to_thread(self._server.verify)
                except Exception as error:
                    self._error = error
                self._verified += 1
            self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _refused(self, failure: Failure, pause: float) -> None:
        """A refusal before a pause of so many seconds. Long pauses are a warning; too long ones are an error."""
        if pause > LONGEST_REFUSAL_S:
            why = f"the server asks to wait {pause:.0f} s, longer than {LONGEST_REFUSAL_S:.0f} s"
            raise Failure(failure.kind, f"{failure}; {why}", status=failure.status)
        if pause >= REPORTED_AFTER_S:
            warn(f"{self._client.name or self._client.base_url} refuses requests for some time: {failure}")

    # Requests.

    def stream(self, requests: Sequence[Request]) -> Iterator[Completed]:
        """Every request with its response, also through outages. Where the meter has no room for one, what is in flight
        is awaited, and the others get no response.

        A request may crash the server: after an outage without any response, requests are sent one by one, and one on which
        the server crashes repeatedly is an error.
        """
        assert self._server is not None
        outages = crashing = 0
        left = {request.key: request for request in requests}
        while left and not self._no_room:
            completed = 0
            sent = list(left.values())[: 1 if outages else None]
            try:
                for request, response in self._send_all(self._server, sent):
                    completed += 1
                    del left[request.key]
                    yield request, response
                outages = crashing = 0
            except ServerBroken:
                raise
            except ServerGone as gone:
                self._held.clear()  # the outage may be the cause: these requests are sent again
                try:
                    self._server.wait_for_server(gone, self._context)
                except BudgetReached:
                    return
                outages = 0 if completed else outages + 1
                if outages > MAX_OUTAGES:
                    outages, crashing = 1, crashing + 1
                    if crashing >= MAX_CRASHING:
                        raise ModelBroken(f"{self._server.base_url} crashed on every request: {gone}") from gone
                    del left[sent[0].key]
                    yield sent[0], Response(error=f"the server crashed on this request {MAX_OUTAGES + 1} times")

    def _send_all(self, server: ServerModel, requests: Sequence[Request]) -> Iterator[Completed]:
        async def send(request: Request) -> tuple[Response | None, float]:
            """Without a response where the request, or its retry, may not be sent."""
            try:
                return await self._send(server, request), time.monotonic()
            except BudgetReached:
                self._no_room = True
                return None, time.monotonic()

        for request, (response, completed) in self._client.run_all(takewhile(self._room, requests), send, self):
            if response is None:
                continue
            if response.failed:
                self._held.append((completed, request, response))
            else:
                yield request, response
            yield from self._release(self._healthy_at)
        canary = self._context.canary
        if self._held and canary is not None:
            try:
                for _ in self._client.run_all([canary], lambda canary: self._check_canary(server, canary), self):
                    pass
            except BudgetReached:
                self._no_room = True
                self._held.clear()  # nothing shows that these requests are the cause
        yield from self._release(time.monotonic())

    def _room(self, request: Request) -> bool:
        meter = self._context.meter
        self._no_room = self._no_room or (meter is not None and not meter.room(request))
        return not self._no_room

    def _release(self, healthy_at: float) -> Iterator[Completed]:
        """Failures from before the server was last healthy are errors of their requests."""
        while self._held and self._held[0][0] <= healthy_at:
            _, request, response = self._held.popleft()
            yield request, response

    async def _send(self, server: ServerModel, request: Request) -> Response:
        """The response to a request; raises where the server fails, not the request."""
        async with self._canary_check:
            started = time.monotonic()
        context = self._context
        response = await server.send(request, context)
        async with self._canary_check:
            if not response.failed:
                self._failures, self._healthy_at = 0, max(self._healthy_at, started)
                if context.canary is None or len(request.text) < len(context.canary.text):  # cheap to send again
                    context.canary = request
                return response
            self._failures += 1
            if context.canary is not None and self._failures % FAILURES_IN_A_ROW == 0:
                await self._check_canary(server, context.canary)
            elif context.canary is None and self._failures >= GIVE_UP_AFTER:
                raise ModelBroken(f"the server failed on each of the first {self._failures} requests: {response.error}")
        return response

    async def _check_canary(self, server: ServerModel, canary: Request) -> None:
        """Send a request that the server answered before: where it fails now, the server is broken, not the requests."""
        started = time.monotonic()
        for pause in (0.0, *RECHECK_PAUSES_S):
            await asyncio.sleep(pause)
            error = (await server.send(canary, self._context)).error
            if error is None and pause:
                raise ServerGone(f"{server.base_url} failed on every request for a while")
            if error is None:
                self._healthy_at = max(self._healthy_at, started)
                return
            if time.monotonic() - started > LONG_CHECK_S:
                break
        raise ServerBroken(f"{server.base_url} fails on every request, even on one that it answered before: {error}")


FIRST_LIMIT = 4
BETTER = 1.05  # a higher limit must raise the throughput by this factor to be raised again
PROBE_EVERY = 8  # windows without gain before the limit is raised by one


class ConcurrencyLimiter:
    """Admits calls. A window is as many completed calls as the limit."""

    def __init__(self, maximum: int, clock: Callable[[], float] = time.monotonic, first: int = FIRST_LIMIT) -> None:
        self.maximum, self.limit = maximum, min(first, maximum)
        self._ceiling = maximum  # below the limit that the server refused last
        self._clock = clock
        self._busy, self._done, self._idle_windows = 0, 0, 0
        self._best_rate = 0.0
        self._window_start: float | None = None
        self._closed_until = 0.0
        self._changed = asyncio.Condition()

    async def enter(self) -> None:
        """Wait until fewer calls than the limit are in flight."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._busy < self.limit)
            self._busy += 1
            if self._window_start is None:
                self._window_start = self._now()

    async def until_open(self) -> None:
        """Wait as long as the server has asked to send nothing."""
        while (wait := self._closed_until - self._now()) > 0:
            await asyncio.sleep(wait)

    async def leave(self, *, ok: bool) -> None:
        async with self._changed:
            self._busy -= 1
            if ok:
                self._done += 1
                if self._done >= self.limit:
                    self._end_window()
            self._changed.notify_all()

    async def push_back(self, retry_after: float | None) -> None:
        """The server is overloaded: halve the limit, and send nothing before `retry_after` seconds have passed."""
        async with self._changed:
            self._ceiling = max(1, self.limit - 1)
            self.limit = max(1, self.limit // 2)
            self._best_rate, self._done, self._window_start = 0.0, 0, None
            if retry_after:
                self._closed_until = max(self._closed_until, self._now() + retry_after)
            self._changed.notify_all()

    def _end_window(self) -> None:
        start = self._window_start if self._window_start is not None else self._now()
        rate = self._done / max(self._now() - start, 1e-9)
        self._done, self._window_start = 0, self._now()
        if rate > self._best_rate * BETTER:
            self._best_rate, self._idle_windows = rate, 0
            self.limit = min(self._ceiling, math.ceil(self.limit * 1.5))
            return
        self._idle_windows += 1
        if self._idle_windows >= PROBE_EVERY:
            self._idle_windows, self._best_rate = 0, rate
            self.limit = min(self.maximum, self.limit + 1)
            self._ceiling = max(self._ceiling, self.limit)  # the server may take more now

    def _now(self) -> float:
        return self._clock()
