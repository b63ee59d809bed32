"""A server that says no for a while: its calls are tried again, and fewer of them are under way."""

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
def test_a_server_that_is_busy_ten_times_is_waited_for(code: int) -> None:
    with FaultServer(lambda server, path, body: status(code) if len(server.calls) <= 10 else body) as server:
        assert post_all(server) == [{"number": 0}]
        assert len(server.calls) == 11


def test_a_server_that_is_broken_is_not_waited_for_as_long() -> None:
    """The twin: a 500 is no push-back, and ten of them are an error."""
    with FaultServer(lambda server, path, body: status(500) if len(server.calls) <= 10 else body) as server:
        (found,) = post_all(server)
        assert isinstance(found, Failure) and len(server.calls) == client.ATTEMPTS < 10


def test_a_server_that_stays_busy_becomes_an_error_in_its_own_words() -> None:
    with FaultServer(lambda *_: status(503, "loading the model")) as server:
        (found,) = post_all(server)
        assert str(found) == "HTTP 503: loading the model"
        assert len(server.calls) == client.THROTTLED_ATTEMPTS


async def window(gate: ConcurrencyLimiter) -> int:
    """As many calls as the gate admits, all of which pass; returns how many that were."""
    width = gate.limit
    for _ in range(width):
        await gate.enter()
    for _ in range(width):
        await gate.leave(ok=True)
    return width


def faster_and_faster() -> Callable[[], float]:
    """A clock by which every call takes less time than the one before, so that a gate has reason to widen."""
    now, pace = 0.0, 1.0

    def read() -> float:
        nonlocal now, pace
        now, pace = now + pace, pace * 0.99
        return now

    return read


def test_a_gate_that_was_pushed_back_does_not_widen_to_what_was_refused() -> None:
    async def steps(gate: ConcurrencyLimiter) -> None:
        gate.limit = 16
        await gate.push_back(None)
        assert gate.limit == 8
        widths = [await window(gate) for _ in range(12)]
        assert widths[0] == 8 and max(widths) == 15

    asyncio.run(steps(ConcurrencyLimiter(64, clock=faster_and_faster())))


def test_a_gate_that_was_never_pushed_back_widens_to_its_most() -> None:
    """The twin, without the refusal."""

    async def steps(gate: ConcurrencyLimiter) -> None:
        gate.limit = 8
        widths = [await window(gate) for _ in range(12)]
        assert max(widths) == 64

    asyncio.run(steps(ConcurrencyLimiter(64, clock=faster_and_faster())))


def test_a_gate_tries_more_again_after_many_windows() -> None:
    async def steps(gate: ConcurrencyLimiter) -> None:
        gate.limit = 4
        await gate.push_back(None)
        widths = [await window(gate) for _ in range(80)]
        assert max(widths) > 3

    asyncio.run(steps(ConcurrencyLimiter(64, clock=iter(range(10**6)).__next__)))


def test_a_gate_never_closes_for_good() -> None:
    async def steps(gate: ConcurrencyLimiter) -> None:
        for _ in range(20):
            await gate.push_back(None)
        assert gate.limit == 1
        await asyncio.wait_for(gate.enter(), 1)

    asyncio.run(steps(ConcurrencyLimiter(64)))


def test_a_server_with_room_for_eight_is_not_asked_for_more_for_long() -> None:
    widths: list[int] = []
    lock = threading.Lock()

    def answer(server: FaultServer, path: str, body: Any) -> Any:
        with lock:
            busy = server.in_flight
            widths.append(busy)
        time.sleep(0.01)
        return status(429) if busy > 8 else body

    with FaultServer(answer) as server:
        found = post_all(server, 200, concurrency=32)
        assert found == [{"number": number} for number in range(200)]
        assert sum(width > 8 for width in widths[100:]) <= 20


def first_at_once(steady: bool, expected: int) -> int:
    """How many calls are under way before the first is answered, which happens when there are as many as expected."""
    most: list[int] = []

    def answer(server: FaultServer, path: str, body: Any) -> Any:
        until(lambda: server.max_in_flight >= expected)
        time.sleep(0.2)
        most.append(server.max_in_flight)
        return body

    with FaultServer(answer) as server:
        post_all(server, 12, concurrency=12, steady=steady)
    return most[0]


def test_a_steady_client_has_all_its_calls_under_way_from_the_start() -> None:
    assert first_at_once(steady=True, expected=12) == 12


def test_a_client_that_is_not_steady_begins_with_few() -> None:
    assert first_at_once(steady=False, expected=FIRST_LIMIT) == FIRST_LIMIT


def test_a_steady_client_never_has_more_under_way_than_asked() -> None:
    def answer(server: FaultServer, path: str, body: Any) -> Any:
        time.sleep(0.05)
        return body

    with FaultServer(answer) as server:
        post_all(server, 12, concurrency=3, steady=True)
        assert server.max_in_flight == 3


def test_a_steady_client_is_pushed_back_too() -> None:
    def answer(server: FaultServer, path: str, body: Any) -> Any:
        time.sleep(0.01)
        return status(503) if server.in_flight > 4 else body

    with FaultServer(answer) as server:
        assert post_all(server, 60, concurrency=16, steady=True) == [{"number": number} for number in range(60)]
