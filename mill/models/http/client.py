"""Calls to one server: reused connections, responses and streams, timings of every call."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import queue
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from mill.models.http.failures import (
    BODY_CAP,
    Failure,
    parsed,
    raise_reported,
    read_body,
    read_events,
    read_json,
    refuse_status,
)
from mill.models.http.policy import ServerPolicy

T = TypeVar("T")
R = TypeVar("R")
PROBE_TIMEOUT_S = 3.0
READ_ATTEMPTS = 2
CANCEL_AGAIN_S = 0.5
ENDS_S = 1.0  # how long a cancelled call is awaited at a time


@dataclass(frozen=True)
class Reply:
    """A JSON response. Times are in seconds since the first attempt was sent, so they include retries and pauses.

    `first_token_s` is set for streamed responses: when the first text arrived.
    """

    body: Any
    seconds: float
    first_token_s: float | None = None

    def after(self, delay: float) -> Reply:
        """The same reply with times since the first attempt, which was sent `delay` seconds before this one."""
        first = None if self.first_token_s is None else delay + self.first_token_s
        return Reply(self.body, delay + self.seconds, first)


class Collector(Protocol):
    """Joins the events of a stream into one body."""

    def feed(self, event: Any) -> bool:
        """Add the next event; returns whether it has text."""

    def whole(self) -> Any:
        """The body; raises Failure where the stream was not complete."""


@dataclass
class Client:
    """An HTTP client for one server. Use `run_all` for requests and `probe` for a single call."""

    base_url: str
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    timeout: float = 120.0
    concurrency: int = 32
    steady: bool = False
    """Whether `concurrency` calls are in flight from the start, instead of as many as give the best throughput."""
    streams: bool = False
    """Whether calls are streamed. Then each has a connection of its own, except on https://: llama-server closes one after a
    stream without a word, and the next call on it would fail and count as a retry."""
    name: str = ""
    """The server's name in messages; its address by default."""
    _session: Any = field(default=None, repr=False)
    _policy: ServerPolicy | None = field(default=None, repr=False)

    def run_all(
        self, items: Iterable[T], work: Callable[[T], Awaitable[R]], policy: ServerPolicy | None = None
    ) -> Generator[tuple[T, R], None, None]:
        """Every item with the result of `work`, as soon as it is complete.

        There are at most `concurrency` coroutines and connections, however many items. An exception of `work`, an interrupt
        and closing the generator cancel all of them.
        """
        return stream_results(lambda emit: self._run_all(iter(items), work, policy, emit))

    async def _run_all(self, items: Any, work: Any, policy: ServerPolicy | None, emit: Any) -> None:
        async def worker() -> None:
            for item in items:  # shared by all workers: each takes the next when it is free
                emit((item, await work(item)))

        async with self._open(policy):
            tasks = [asyncio.ensure_future(worker()) for _ in range(self.concurrency)]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    task.result()
            finally:
                await _cancel(tasks)

    def probe(self, method: str, path: str, body: Any = None, timeout: float = PROBE_TIMEOUT_S) -> Reply:
        """One call without retries, for health checks and server metadata; its timeout is at most that of other calls."""

        async def once(emit: Callable[[Reply], None]) -> None:
            async with self._open():
                emit(await self._once(method, path, body, min(timeout, self.timeout)))

        (reply,) = stream_results(once)
        return reply

    def read_all(self, paths: Sequence[str]) -> dict[str, bytes]:
        """The bodies of those of these paths that the server has, as they are. Each is asked for again where it does not
        answer, so that a busy server says the same as an idle one."""
        import aiohttp

        limit = aiohttp.ClientTimeout(total=min(PROBE_TIMEOUT_S, self.timeout))

        async def read(path: str) -> bytes | None:
            for _ in range(READ_ATTEMPTS):
                try:
                    async with (
                        _as_failure(self.base_url, PROBE_TIMEOUT_S),
                        self._session.get(self.base_url + path, timeout=limit, allow_redirects=False) as answer,
                    ):
                        await refuse_status(answer)
                        return await read_body(answer, BODY_CAP)
                except Failure as failure:
                    if failure.kind not in ("connection", "cut", "timeout"):
                        return None
            return None

        return {path: body for path, body in self.run_all(paths, read) if body is not None}

    async def post(self, path: str, body: Any, cap: int = BODY_CAP) -> Reply:
        return await self.guarded(lambda: self._once("POST", path, body, self.timeout, cap))

    async def stream(self, path: str, body: Any, collector: Callable[[], Collector]) -> Reply:
        """A streamed response (server-sent events), joined into one body by a collector."""
        body = {**body, "stream": True}
        return await self.guarded(lambda: self._once("POST", path, body, self.timeout, collector=collector()))

    async def guarded(self, call: Callable[[], Awaitable[Reply]]) -> Reply:
        """A call under the policy of the server: see there."""
        assert self._policy is not None
        return await self._policy.call(call)

    async def _once(
        self, method: str, path: str, body: Any, timeout: float, cap: int = BODY_CAP, collector: Collector | None = None
    ) -> Reply:
        """One attempt. A collector joins the events of a stream; a server that cannot stream sends one JSON body."""
        import aiohttp

        options: dict[str, Any] = {"timeout": aiohttp.ClientTimeout(total=timeout), "allow_redirects": False}
        started, first = time.perf_counter(), None
        async with (
            _as_failure(self.base_url, timeout),
            self._session.request(method, self.base_url + path, json=body, **options) as answer,
        ):
            await refuse_status(answer)
            if collector is None or answer.content_type != "text/event-stream":
                content = await read_json(answer, cap)
                raise_reported(content)
                return Reply(content, time.perf_counter() - started)
            async for name, data in read_events(answer):
                if data == b"[DONE]":
                    break
                if data and collector.feed(_event(name, data)) and first is None:
                    first = time.perf_counter() - started
        return Reply(collector.whole(), time.perf_counter() - started, first)

    @asynccontextmanager
    async def _open(self, policy: ServerPolicy | None = None) -> AsyncIterator[None]:
        """A session and a policy for one event loop."""
        import aiohttp

        connector = aiohttp.TCPConnector(
            limit=self.concurrency, force_close=self.streams and self.base_url.startswith("http:")
        )
        self._session = aiohttp.ClientSession(connector=connector, headers=self.headers)
        self._policy = policy or ServerPolicy(self)
        self._policy.open()
        try:
            yield
        finally:
            await self._session.close()
            self._session = self._policy = None


def _event(name: str, data: bytes) -> Any:
    """The JSON of an event; raises where its name or content is an error."""
    event = parsed(data, "an event of the stream")
    raise_reported(event)
    if name == "error":
        raise_reported({"error": event or "without a message"})
    return event


async def _cancel(tasks: Sequence[asyncio.Future[None]]) -> None:
    """End all tasks. A call that is just about to end may swallow a cancellation, so it is repeated."""
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=CANCEL_AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def _as_failure(url: str, timeout: float) -> AsyncIterator[None]:
    """Turns aiohttp's exceptions into a Failure."""
    import aiohttp

    try:
        yield
    except asyncio.TimeoutError as error:
        raise Failure("timeout", f"no answer from {url} within {timeout:g} s") from error
    except aiohttp.ClientConnectorError as error:
        number = getattr(error.os_error, "errno", None)
        reason = os.strerror(number) if number and number > 0 else error.os_error
        raise Failure("connection", f"cannot reach {url}: {reason}") from error
    except aiohttp.InvalidURL as error:
        raise Failure("http", f"{url} is not a URL") from error
    except (aiohttp.ClientError, OSError) as error:
        if isinstance(error.__cause__, aiohttp.http_exceptions.ContentEncodingError):
            raise Failure("garbage", "the server's answer cannot be decompressed") from error
        raise Failure("cut", f"the connection to {url} was cut: {type(error).__name__}") from error


def stream_results(start: Callable[[Callable[[T], None]], Coroutine[Any, Any, None]]) -> Generator[T, None, None]:
    """Run `start(emit)` on an event loop in another thread and yield the emitted values in order. This thread may have a
    running event loop, as in notebooks.

    An interrupt, an exception of the consumer or close() cancels the coroutine and waits until it has ended.
    """
    results: queue.SimpleQueue[Any] = queue.SimpleQueue()
    ended = threading.Event()  # an interrupted join() would report the thread as ended
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []
    errors: list[BaseException] = []

    async def main() -> None:
        running.append((asyncio.get_running_loop(), asyncio.current_task()))  # type: ignore[arg-type]
        await start(results.put)

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            errors.append(error)
        finally:
            ended.set()
            results.put(ended)

    threading.Thread(target=contextvars.copy_context().run, args=(run,), name="mill-http", daemon=True).start()
    try:
        while (result := results.get()) is not ended:
            yield result
        if errors:
            raise errors[0]
    finally:
        while not ended.is_set():
            if running:
                loop, task = running.pop()
                with contextlib.suppress(RuntimeError):  # it has ended by itself
                    loop.call_soon_threadsafe(task.cancel)
            ended.wait(ENDS_S)
