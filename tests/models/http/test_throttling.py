"""A server that refuses calls for a while: they are retried, with fewer in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from mill.models.http import policy
from mill.models.http.policy import FIRST_LIMIT, ConcurrencyLimiter
from mill.support.terminal import own_warnings
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


def test_a_server_that_stays_busy_is_an_error_with_its_message() -> None:
    with FaultServer(lambda *_: status(503, "loading the model")) as server:
        (results,) = post_all(server)
        assert str(results) == "HTTP 503: loading the model"
        assert len(server.calls) == policy.THROTTLED_ATTEMPTS


def limits_of(seconds: Callable[[int], float], accepted: int = 64, windows: int = 40) -> list[int]:
    """The limits of a client over the windows on a server which takes so many seconds for as many calls as the limit, and
    refuses those above the number that it accepts."""
    now, limits = 0.0, list[int]()

    async def steps(limiter: ConcurrencyLimiter) -> None:
        nonlocal now
        for _ in range(windows):
            limits.append(limiter.limit)
            for _ in range(limiter.limit):
                await limiter.enter()
            now += seconds(limits[-1])
            if limits[-1] > accepted:
                await limiter.push_back(None)
            for number in range(limits[-1]):
                await limiter.leave(ok=number < accepted)

    asyncio.run(steps(ConcurrencyLimiter(64, clock=lambda: now)))
    return limits


def test_the_limit_grows_while_more_calls_give_more_throughput() -> None:
    assert limits_of(lambda calls: 1.0)[-1] == 64


def test_the_limit_stays_low_where_the_server_only_queues() -> None:
    """Calls that wait in its queue would run into their timeout."""
    assert max(limits_of(lambda calls: 0.5 * calls)) <= 10


def test_the_limit_adapts_to_a_server_that_takes_eight_calls() -> None:
    """The limit stays below one that was refused, which is tried again after many windows."""
    limits = limits_of(lambda calls: 1.0, accepted=8, windows=200)
    assert max(limits) > 8, "refused at least once"
    assert 1 <= sum(limit > 8 for limit in limits[20:]) <= 20 and min(limits) >= 4


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


def test_long_refusals_are_reported_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(policy, "REPORTED_AFTER_S", 0.1)
    monkeypatch.setattr(policy, "THROTTLED_ATTEMPTS", 3)
    with own_warnings(), FaultServer(lambda *_: status(429, "busy", Retry_After="0.2")) as server:
        results = post_all(server, 8, concurrency=2)
    assert {str(result) for result in results} == {"HTTP 429: busy"}
    assert caplog.messages == [f"{server.url} refuses requests for some time: HTTP 429: busy"]
