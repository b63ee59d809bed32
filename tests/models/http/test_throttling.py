"""A server that refuses calls for a while: they are retried, with fewer in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mill.models.http import policy
from mill.models.http.failures import Failure
from mill.models.http.policy import FIRST_LIMIT, ConcurrencyLimiter
from tests.servers import FaultServer, post_all, status
from tests.waiting import until


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "FIRST_PAUSE_S", 0.005)
    monkeypatch.setattr(policy, "LONGEST_PAUSE_S", 0.01)


@pytest.mark.parametrize("code", [429, 503])
def test_ten_refusals_are_retried(code: int) -> None:
    with FaultServer(lambda server, path, body: status(code) if len(server.calls) <= 10 else body) as server:
        assert post_all(server) == [{"number": 0}]
        assert len(server.calls) == 11


def test_server_errors_are_retried_fewer_times_than_refusals() -> None:
    """The twin: a 500 is not a refusal, and ten of them are an error."""
    with FaultServer(lambda server, path, body: status(500) if len(server.calls) <= 10 else body) as server:
        (results,) = post_all(server)
        assert isinstance(results, Failure) and len(server.calls) == policy.ATTEMPTS < 10


def test_a_server_that_stays_busy_is_an_error_with_its_message() -> None:
    with FaultServer(lambda *_: status(503, "loading the model")) as server:
        (results,) = post_all(server)
        assert str(results) == "HTTP 503: loading the model"
        assert len(server.calls) == policy.THROTTLED_ATTEMPTS


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
    """It answers eight calls in a second and refuses the others."""
    now, limits = 0.0, list[int]()

    async def steps(limiter: ConcurrencyLimiter) -> None:
        nonlocal now
        for _ in range(200):
            limits.append(limiter.limit)
            for _ in range(limiter.limit):
                await limiter.enter()
            now += 1
            if limits[-1] > 8:
                await limiter.push_back(None)
            for number in range(limits[-1]):
                await limiter.leave(ok=number < 8)

    asyncio.run(steps(ConcurrencyLimiter(64, clock=lambda: now)))
    assert max(limits) > 8, "refused at least once"
    assert sum(limit > 8 for limit in limits[20:]) <= 20 and min(limits) >= 4


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many calls the limiter had admitted after each admission."""
    counts: list[int] = []
    enter = ConcurrencyLimiter.enter

    async def counted(limiter: ConcurrencyLimiter) -> None:
        await enter(limiter)
        counts.append(limiter._busy)

    monkeypatch.setattr(ConcurrencyLimiter, "enter", counted)
    return counts


@pytest.mark.parametrize(("steady", "expected"), [(True, 12), (False, FIRST_LIMIT)])
def test_a_steady_client_starts_with_all_its_calls_and_an_adaptive_one_with_few(
    steady: bool, expected: int, busy: list[int]
) -> None:
    admitted: list[int] = []

    def answer(server: FaultServer, path: str, body: Any) -> Any:
        until(lambda: server.max_in_flight >= expected, f"{expected} calls in flight")
        admitted.append(max(busy))
        return body

    with FaultServer(answer) as server:
        post_all(server, 12, concurrency=12, steady=steady)
    assert admitted[0] == expected


def test_a_steady_client_never_exceeds_its_concurrency(busy: list[int]) -> None:
    def answer(server: FaultServer, path: str, body: Any) -> Any:
        until(lambda: server.max_in_flight == 3, "third call in flight")
        return body

    with FaultServer(answer) as server:
        post_all(server, 12, concurrency=3, steady=True)
        assert server.max_in_flight == max(busy) == 3


@pytest.mark.parametrize("steady", [True, False])
def test_a_client_reduces_its_concurrency_on_refusals(steady: bool, busy: list[int]) -> None:
    """All of the first calls are in flight before the first of them is refused. The calls are too few for the limit to be
    raised to the first one again, whatever rates the limiter measures."""
    first = 16 if steady else FIRST_LIMIT
    refused: list[str] = []

    def answer(server: FaultServer, path: str, body: Any) -> Any:
        until(lambda: server.max_in_flight >= first, f"{first} calls in flight")
        with server.lock:
            if len(refused) < 3:
                refused.append(path)
                return status(503)
        return body

    with FaultServer(answer) as server:
        assert post_all(server, 24, concurrency=16, steady=steady) == [{"number": number} for number in range(24)]
    assert max(busy) == first and busy[-1] < first
