"""The total time spent on a server that refuses every request: bounded, and reported meanwhile."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from mill.models.http import policy
from mill.models.http.client import Client, Reply
from mill.models.http.failures import Failure
from mill.models.http.policy import LONGEST_REFUSAL_S, ServerPolicy
from mill.support import terminal
from tests.servers import FaultServer, post_all, status

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


def test_a_short_refusal_is_not_reported(refused: RefusedClient) -> None:
    for _ in range(5):
        refused.refuse(1.0)
    assert refused.reports == []


def test_any_success_resets_the_count(refused: RefusedClient) -> None:
    """The twin: a server that accepts some calls is busy, not closed."""
    for _ in range(40):
        refused.refuse(60.0)
        refused.succeed()
    assert refused.now == 2400


def test_old_refusals_do_not_count(refused: RefusedClient) -> None:
    refused.refuse(300.0)
    refused.now += 3600
    refused.refuse(300.0)
    assert "for 300 s" in refused.until_given_up(500.0)


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
