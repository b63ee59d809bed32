"""A server that refuses calls for a while: they are retried, with fewer in flight."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from mill.models.http import Failure, client
from mill.models.http.limiter import FIRST_LIMIT, ConcurrencyLimiter
from tests.launching import until
from tests.servers import FaultServer, post_all, status


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FIRST_PAUSE_S", 0.005)
    monkeypatch.setattr(client, "LONGEST_PAUSE_S", 0.01)


@pytest.mark.parametrize("code", [429, 503])
def test_ten_refusals_are_retried(code: int) -> None:
    with FaultServer(lambda server, path, body: status(code) if len(server.calls) <= 10 else body) as server:
        assert post_all(server) == [{"number": 0}]
        assert len(server.calls) == 11


def test_server_errors_are_retried_fewer_times_than_refusals() -> None:
    """The twin: a 500 is not a refusal, and ten of them are an error."""
    with FaultServer(lambda server, path, body: status(500) if len(server.calls) <= 10 else body) as server:
        (results,) = post_all(server)
        assert isinstance(results, Failure) and len(server.calls) == client.ATTEMPTS < 10


def test_a_server_that_stays_busy_is_an_error_with_its_message() -> None:
    with FaultServer(lambda *_: status(503, "loading the model")) as server:
        (results,) = post_all(server)
        assert str(results) == "HTTP 503: loading the model"
        assert len(server.calls) == client.THROTTLED_ATTEMPTS


async def window(limiter: ConcurrencyLimiter) -> int:
    """As many successful calls as the limiter admits; returns their number."""
    limit = limiter.limit
    for _ in range(limit):
        await limiter.enter()
    for _ in range(limit):
        await limiter.leave(ok=True)
    return limit


def accelerating_clock() -> Callable[[], float]:
    """A clock on which each call is faster than the last, so that the limiter raises its limit."""
    now, pace = 0.0, 1.0

    def read() -> float:
        nonlocal now, pace
        now, pace = now + pace, pace * 0.99
        return now

    return read


def test_after_a_refusal_the_limit_stays_below_the_refused_one() -> None:
    async def steps(limiter: ConcurrencyLimiter) -> None:
        limiter.limit = 16
        await limiter.push_back(None)
        assert limiter.limit == 8
        limits = [await window(limiter) for _ in range(12)]
        assert limits[0] == 8 and max(limits) == 15

    asyncio.run(steps(ConcurrencyLimiter(64, clock=accelerating_clock())))


def test_without_a_refusal_the_limit_grows_to_its_maximum() -> None:
    """The twin, without the refusal."""

    async def steps(limiter: ConcurrencyLimiter) -> None:
        limiter.limit = 8
        limits = [await window(limiter) for _ in range(12)]
        assert max(limits) == 64

    asyncio.run(steps(ConcurrencyLimiter(64, clock=accelerating_clock())))


def test_the_limit_is_probed_again_after_many_windows() -> None:
    async def steps(limiter: ConcurrencyLimiter) -> None:
        limiter.limit = 4
        await limiter.push_back(None)
        limits = [await window(limiter) for _ in range(80)]
        assert max(limits) > 3

    asyncio.run(steps(ConcurrencyLimiter(64, clock=iter(range(10**6)).__next__)))


def test_the_limit_is_at_least_one() -> None:
    async def steps(limiter: ConcurrencyLimiter) -> None:
        for _ in range(20):
            await limiter.push_back(None)
        assert limiter.limit == 1
        await asyncio.wait_for(limiter.enter(), 1)

    asyncio.run(steps(ConcurrencyLimiter(64)))


def test_concurrency_adapts_to_a_server_that_takes_eight_calls() -> None:
    limits: list[int] = []
    lock = threading.Lock()

    def answer(server: FaultServer, path: str, body: Any) -> Any:
        with lock:
            busy = server.in_flight
            limits.append(busy)
        time.sleep(0.01)
        return status(429) if busy > 8 else body

    with FaultServer(answer) as server:
        results = post_all(server, 200, concurrency=32)
        assert results == [{"number": number} for number in range(200)]
        assert sum(limit > 8 for limit in limits[100:]) <= 20


def initial_concurrency(steady: bool, expected: int) -> int:
    """How many calls are in flight before the first response, which is sent when `expected` are in flight."""
    counts: list[int] = []

    def answer(server: FaultServer, path: str, body: Any) -> Any:
        until(lambda: server.max_in_flight >= expected)
        time.sleep(0.2)
        counts.append(server.max_in_flight)
        return body

    with FaultServer(answer) as server:
        post_all(server, 12, concurrency=12, steady=steady)
    return counts[0]


def test_a_steady_client_starts_with_all_its_calls_in_flight() -> None:
    assert initial_concurrency(steady=True, expected=12) == 12


def test_an_adaptive_client_starts_with_few_calls() -> None:
    assert initial_concurrency(steady=False, expected=FIRST_LIMIT) == FIRST_LIMIT


def test_a_steady_client_never_exceeds_its_concurrency() -> None:
    def answer(server: FaultServer, path: str, body: Any) -> Any:
        time.sleep(0.05)
        return body

    with FaultServer(answer) as server:
        post_all(server, 12, concurrency=3, steady=True)
        assert server.max_in_flight == 3


def test_a_steady_client_reduces_its_concurrency_on_refusals() -> None:
    def answer(server: FaultServer, path: str, body: Any) -> Any:
        time.sleep(0.01)
        return status(503) if server.in_flight > 4 else body

    with FaultServer(answer) as server:
        assert post_all(server, 60, concurrency=16, steady=True) == [{"number": number} for number in range(60)]
