"""A server that refuses calls for a while: they are retried, with fewer in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from mill.models.http import policy
from mill.models.http.client import Client, Reply
from mill.models.http.failures import Failure
from mill.models.http.policy import FIRST_LIMIT, LONGEST_REFUSAL_S, ConcurrencyLimiter, ServerPolicy
from mill.support import terminal
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


# The total time: bounded, and reported meanwhile.

BUSY = Failure("http", "HTTP 429: busy", status=429)


class RefusedClient:
    """A client that is always refused, on a clock that advances by its pauses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.policy = 0.0, ServerPolicy(Client("http://h"), clock=lambda: self.now)
        self.reports: list[tuple[float, str]] = []
        monkeypatch.setattr(policy, "warn", lambda text: self.reports.append((self.now, text)))

    def refuse(self, pause: float, failure: Failure = BUSY) -> None:
        self.policy.refused(failure, pause)
        self.now += pause

    def succeed(self) -> None:
        async def fine() -> Reply:
            return Reply({}, 0.0)

        async def call() -> None:
            self.policy.open()
            await self.policy.call(fine)

        asyncio.run(call())

    def until_given_up(self, pause: float) -> str:
        while self.now < 10 * LONGEST_REFUSAL_S:
            try:
                self.refuse(pause)
            except Failure as failure:
                return str(failure)
        return "never"


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> RefusedClient:
    return RefusedClient(monkeypatch)


@pytest.mark.parametrize("pause", [0.5, 20.0, 120.0])
def test_a_server_that_always_refuses_fails_after_ten_minutes(refused: RefusedClient, pause: float) -> None:
    assert "HTTP 429: busy; the server has refused every request for" in refused.until_given_up(pause)
    assert LONGEST_REFUSAL_S - pause <= refused.now <= LONGEST_REFUSAL_S


def test_the_wait_is_reported_at_most_once_a_minute_with_its_length(refused: RefusedClient) -> None:
    refused.until_given_up(5.0)
    times = [time for time, _ in refused.reports]
    assert times[0] <= 10 and 9 <= len(times) <= 11
    assert all(later - earlier >= 60 for earlier, later in pairwise(times))
    assert (
        "http://h refuses requests (HTTP 429: busy): waited 65 s, next retry in 5 s, for 600 s at most"
        in refused.reports[1][1]
    )


def test_any_success_resets_the_count(refused: RefusedClient) -> None:
    """The twin: a server that accepts some calls is busy, not closed."""
    for _ in range(40):
        refused.refuse(60.0)
        refused.succeed()
    assert refused.now == 2400


def test_a_retry_after_above_the_limit_fails_at_once(refused: RefusedClient) -> None:
    with pytest.raises(Failure, match="HTTP 429: busy; the server asks to wait 3600 s, longer than 600 s"):
        refused.refuse(3600.0, Failure("http", "HTTP 429: busy", status=429, retry_after=3600.0))
    assert refused.now == 0


def test_all_calls_of_a_client_share_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a limit of one second in all, not one second for each call."""
    monkeypatch.setattr(policy, "LONGEST_REFUSAL_S", 1.0)
    monkeypatch.setattr(policy, "REPORTED_AFTER_S", 0.1)
    monkeypatch.setattr(policy, "THROTTLED_ATTEMPTS", 10**6)
    collected = terminal.CollectingHandler()
    monkeypatch.setattr(terminal.logger, "handlers", [collected])
    with FaultServer(lambda *_: status(429, "busy", Retry_After="0.2")) as server:
        results = post_all(server, 8, concurrency=2)
        assert len(server.calls) < 40
    assert all("the server has refused every request for" in str(result) for result in results)
    (logged,) = collected.take()
    assert f"{server.url} refuses requests" in logged
