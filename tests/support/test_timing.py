"""Seconds by phase: each counts once, in the innermost phase."""

from __future__ import annotations

import threading
import time

import pytest

from mill.support import clocks
from mill.support.clocks import FORWARD, OTHER, PLANNING, START, Stopwatch


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "process_time", lambda: 0.5)
    return now


def test_each_second_counts_in_the_innermost_phase(clock: list[float]) -> None:
    watch = Stopwatch()
    clock[0] += 1  # the process starts
    with watch.phase(PLANNING):
        clock[0] += 2
        with watch.phase(FORWARD):
            clock[0] += 4
        clock[0] += 8
    clock[0] += 16
    assert watch.take() == {START: 1.5, PLANNING: 10.0, FORWARD: 4.0, OTHER: 16.0}
    clock[0] += 3
    assert watch.take() == {OTHER: 3.0}


def test_a_phase_that_fails_has_its_time(clock: list[float]) -> None:
    watch = Stopwatch()
    with pytest.raises(ValueError, match="x"), watch.phase(FORWARD):
        clock[0] += 2
        raise ValueError("x")
    assert watch.take()[FORWARD] == 2.0


def test_other_threads_are_not_counted_again() -> None:
    clocks.take_seconds()

    def work() -> None:
        with clocks.phase(FORWARD):
            pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert FORWARD not in clocks.take_seconds()
