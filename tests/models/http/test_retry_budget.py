"""How long a server that refuses everything is waited for: bounded in all, and reported while it lasts."""

from __future__ import annotations

from itertools import pairwise

import pytest

from mill.api import warnings
from mill.models.http import Failure, client, retry_budget
from mill.models.http.retry_budget import LONGEST_REFUSAL_S, RetryBudget
from tests.servers import FaultServer, post_all, status

BUSY = Failure("http", "HTTP 429: busy", status=429)


class Waiting:
    """A client that is refused again and again, on a clock that moves by its pauses alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.retry_budget = 0.0, RetryBudget(clock=lambda: self.now)
        self.reports: list[tuple[float, str]] = []
        monkeypatch.setattr(retry_budget, "warn", lambda text: self.reports.append((self.now, text)))

    def refuse(self, pause: float, failure: Failure = BUSY) -> None:
        self.retry_budget.refused(failure, "http://h", pause)
        self.now += pause

    def until_given_up(self, pause: float) -> str:
        while self.now < 10 * LONGEST_REFUSAL_S:
            try:
                self.refuse(pause)
            except Failure as failure:
                return str(failure)
        return "never"


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    return Waiting(monkeypatch)


@pytest.mark.parametrize("pause", [0.5, 20.0, 120.0])
def test_a_server_that_only_refuses_is_given_up_after_ten_minutes(waiting: Waiting, pause: float) -> None:
    assert "HTTP 429: busy; the server has refused every request for" in waiting.until_given_up(pause)
    assert LONGEST_REFUSAL_S - pause <= waiting.now <= LONGEST_REFUSAL_S


def test_the_wait_is_reported_at_most_once_a_minute_with_its_length(waiting: Waiting) -> None:
    waiting.until_given_up(5.0)
    times = [time for time, _ in waiting.reports]
    assert times[0] <= 10 and 9 <= len(times) <= 11
    assert all(later - earlier >= 60 for earlier, later in pairwise(times))
    assert (
        "http://h refuses requests (HTTP 429: busy): waited 65 s, asking again in 5 s, for 600 s at most"
        in waiting.reports[1][1]
    )


def test_a_short_refusal_is_not_reported(waiting: Waiting) -> None:
    for _ in range(5):
        waiting.refuse(1.0)
    assert waiting.reports == []


def test_any_answer_ends_the_count(waiting: Waiting) -> None:
    """The twin of giving up: a server that lets some through is busy, not closed."""
    for _ in range(40):
        waiting.refuse(60.0)
        waiting.retry_budget.succeeded()
    assert waiting.now == 2400


def test_refusals_of_another_hour_do_not_add_up(waiting: Waiting) -> None:
    waiting.refuse(300.0)
    waiting.now += 3600
    waiting.refuse(300.0)
    assert "for 300 s" in waiting.until_given_up(500.0)


def test_who_asks_for_more_than_anybody_waits_is_refused_at_once(waiting: Waiting) -> None:
    with pytest.raises(Failure, match="HTTP 429: busy; the server asks to wait 3600 s, longer than 600 s"):
        waiting.refuse(3600.0, Failure("http", "HTTP 429: busy", status=429, retry_after=3600.0))
    assert waiting.now == 0


def test_all_calls_of_a_client_are_given_up_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a limit of a second instead of ten minutes: not a second for each of them."""
    monkeypatch.setattr(retry_budget, "LONGEST_REFUSAL_S", 1.0)
    monkeypatch.setattr(retry_budget, "REPORTED_AFTER_S", 0.1)
    monkeypatch.setattr(client, "THROTTLED_ATTEMPTS", 10**6)
    collected = warnings.CollectingHandler()
    monkeypatch.setattr(warnings.logger, "handlers", [collected])
    with FaultServer(lambda *_: status(429, "busy", Retry_After="0.2")) as server:
        found = post_all(server, 8, concurrency=2)
        assert len(server.calls) < 40
    assert all("the server has refused every request for" in str(one) for one in found)
    (logged,) = collected.take()
    assert f"{server.url} refuses requests" in logged
