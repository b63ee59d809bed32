"""Calls to one server: reused connections, a gate for concurrency, retries for what may pass, timings for every call."""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mill.api.secrets import excerpt
from mill.models.http.failure import Failure, http_failure
from mill.models.http.gate import FIRST_LIMIT, Gate

T = TypeVar("T")
ATTEMPTS = 6
THROTTLED_ATTEMPTS = 24  # a server that is only busy is waited for: some minutes in all
TIMEOUT_ATTEMPTS = 2  # a timeout has cost minutes already
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 20.0
PROBE_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class Reply:
    """A JSON answer. `first_token_s` and `token_times` are of streamed ones, in seconds after the call went out."""

    body: Any
    seconds: float
    attempts: int = 1
    first_token_s: float | None = None
    token_times: tuple[float, ...] = ()


@dataclass
class Client:
    """A server's address and manners. Use `run_all` for work and `probe` for a single look."""

    base_url: str
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    timeout: float = 120.0
    concurrency: int = 32
    steady: bool = False
    """Whether `concurrency` calls are under way from the start, instead of as many as the server is found to like."""
    verify: Callable[[], None] | None = None
    """Raises where the server at the address is gone or not the one that it was; None where there is nothing to look at."""
    _session: Any = field(default=None, repr=False)
    _gate: Gate | None = field(default=None, repr=False)
    _doubt: _Doubt | None = field(default=None, repr=False)

    def run_all(
        self, items: Iterable[T], work: Callable[[T], Awaitable[Any]], done: Callable[[T, Any | Failure], None]
    ) -> None:
        """Do `work` for every item and hand each result or Failure to `done` the moment it is there.

        There are at most `concurrency` coroutines and connections, however many items; an interrupt cancels them all, and
        so does what `verify` raises: that says nothing about an item.
        """
        asyncio.run(self._run_all(iter(items), work, done))

    async def _run_all(self, items: Any, work: Any, done: Any) -> None:
        async def worker() -> None:
            for item in items:  # shared by all workers: each takes the next when it is free
                try:
                    result = await work(item)
                except Failure as failure:
                    result = failure
                done(item, result)

        async with self._open():
            tasks = [asyncio.ensure_future(worker()) for _ in range(self.concurrency)]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def probe(self, method: str, path: str, body: Any = None, timeout: float = PROBE_TIMEOUT_S) -> Reply:
        """One call without retries, for health checks and questions about the server."""

        async def once() -> Reply:
            async with self._open():
                return await self._once(method, path, body, timeout)

        return asyncio.run(once())

    async def post(self, path: str, body: Any) -> Reply:
        return await self.guarded(lambda: self._once("POST", path, body, self.timeout))

    async def stream(self, path: str, body: Any) -> Reply:
        """A streamed answer (server-sent events); the reply's body is the list of its events."""
        return await self.guarded(lambda: self._stream_once(path, body))

    async def guarded(self, call: Callable[[], Awaitable[Reply]]) -> Reply:
        """A call through the gate, again with a growing pause while its Failure is transient. Where a connection was cut or
        refused, the server is looked at before anything else is taken from it: another one may stand there by now."""
        assert self._gate is not None and self._doubt is not None
        pause, tries = FIRST_PAUSE_S, Counter[int]()
        while True:
            await self._gate.enter()
            ok = False
            try:
                reply = await call()
                await self._doubt.over()
                ok = True
                return Reply(reply.body, reply.seconds, tries.total() + 1, reply.first_token_s, reply.token_times)
            except Failure as failure:
                if failure.away and self.verify is not None:
                    await self._doubt.settle(self.verify)
                most = _most_attempts(failure)
                tries[most] += 1  # those of one kind say nothing about another
                if not failure.transient or tries[most] >= most:
                    raise
                if failure.throttled:
                    await self._gate.push_back(failure.retry_after)
            finally:
                await self._gate.leave(ok=ok)
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, LONGEST_PAUSE_S)

    async def _once(self, method: str, path: str, body: Any, timeout: float) -> Reply:
        started = time.perf_counter()
        call = {"json": body, "timeout": _limit(timeout)}
        async with (
            _told_apart(self.base_url, timeout),
            self._session.request(method, self.base_url + path, **call) as answer,
        ):
            raw = await answer.read()
            if answer.status >= 400:
                raise http_failure(answer.status, raw, answer.headers)
        return Reply(_read_json(raw), time.perf_counter() - started)

    async def _stream_once(self, path: str, body: Any) -> Reply:
        started, events, times = time.perf_counter(), [], []
        async with _told_apart(self.base_url, self.timeout):
            limit = _limit(self.timeout)
            async with self._session.post(self.base_url + path, json={**body, "stream": True}, timeout=limit) as answer:
                if answer.status >= 400:
                    raise http_failure(answer.status, await answer.read(), answer.headers)
                if answer.content_type != "text/event-stream":  # a server that does not stream answers whole
                    whole = _read_json(await answer.read())
                    return Reply([whole], time.perf_counter() - started)
                async for data in _events(answer.content):
                    if data == b"[DONE]":
                        break
                    try:
                        events.append(json.loads(data))
                    except ValueError as error:
                        raise Failure("garbage", f"an event of the stream is not JSON: {excerpt(repr(data), 80)}") from error
                    times.append(time.perf_counter() - started)
                else:
                    if not events or not _finished(events[-1]):
                        raise Failure("cut", "the server ended the stream before the answer was complete")
        first = times[0] if times else None
        return Reply(events, time.perf_counter() - started, first_token_s=first, token_times=tuple(times))

    def _open(self) -> Any:
        return _Opened(self)


def _most_attempts(failure: Failure) -> int:
    if failure.throttled:
        return THROTTLED_ATTEMPTS
    return TIMEOUT_ATTEMPTS if failure.kind == "timeout" else ATTEMPTS


class _Doubt:
    """Whether somebody is looking at the server right now, and what came of it."""

    def __init__(self) -> None:
        self._looking, self._looks = asyncio.Lock(), 0
        self._error: Exception | None = None

    async def over(self) -> None:
        """Wait until nobody looks any more; raises what the last look did."""
        async with self._looking:
            if self._error is not None:
                raise self._error

    async def settle(self, verify: Callable[[], None]) -> None:
        """Look at the server, unless somebody else did so while this one waited for it."""
        looks = self._looks
        async with self._looking:
            if self._error is None and looks == self._looks:
                try:
                    await asyncio.to_thread(verify)
                except Exception as error:
                    self._error = error
                self._looks += 1
            if self._error is not None:
                raise self._error


class _Opened:
    """A session and a gate for the length of one event loop."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def __aenter__(self) -> None:
        import aiohttp

        connector = aiohttp.TCPConnector(limit=self.client.concurrency)
        self.client._session = aiohttp.ClientSession(connector=connector, headers=self.client.headers)
        most = self.client.concurrency
        self.client._gate = Gate(most, first=most if self.client.steady else FIRST_LIMIT)
        self.client._doubt = _Doubt()

    async def __aexit__(self, *_: object) -> None:
        await self.client._session.close()
        self.client._session = self.client._gate = self.client._doubt = None


class _told_apart:
    """Turns what the HTTP library raises into a Failure that says what happened."""

    def __init__(self, url: str, timeout: float) -> None:
        self.url, self.timeout = url, timeout

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: object) -> None:
        import aiohttp

        if error is None or isinstance(error, (Failure, asyncio.CancelledError)):
            return
        if isinstance(error, asyncio.TimeoutError):
            raise Failure("timeout", f"no answer from {self.url} within {self.timeout:g} s") from error
        if isinstance(error, aiohttp.ClientConnectorError):
            raise Failure("connection", f"cannot reach {self.url}: {_os_words(error)}") from error
        if isinstance(error, aiohttp.InvalidURL):
            raise Failure("http", f"{self.url} is not a URL") from error
        if isinstance(error, (aiohttp.ClientError, OSError)):
            raise Failure("cut", f"the connection to {self.url} was cut: {type(error).__name__}") from error


def _os_words(error: Any) -> str:
    number = getattr(error.os_error, "errno", None)
    return os.strerror(number) if number and number > 0 else str(error.os_error)


async def _events(content: Any) -> AsyncIterator[bytes]:
    async for line in content:
        if line.startswith(b"data:"):
            yield line[5:].strip()


def _read_json(raw: bytes) -> Any:
    try:
        return json.loads(raw) if raw else None
    except ValueError as error:
        raise Failure("garbage", f"the server's answer is not JSON: {excerpt(repr(raw), 80)}") from error


def _finished(event: Any) -> bool:
    """Whether an event is the last of its answer: OpenAI's finish_reason, or llama.cpp's stop."""
    if not isinstance(event, dict):
        return False
    choices = event.get("choices") or [{}]
    return bool(event.get("stop") or choices[0].get("finish_reason") or (event.get("usage") and not event.get("choices")))


def _limit(timeout: float) -> Any:
    import aiohttp

    return aiohttp.ClientTimeout(total=timeout)
