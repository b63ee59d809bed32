"""How the time of a call grows with its input: a ratio, so a slow machine and other work on it do not count."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
TIMES = 8
LINEAR, QUADRATIC = 24, 200  # for an input that is TIMES as large: some 8 where the time is linear, 64 where it is quadratic


def growth(call: Callable[[T], object], small: T, large: T) -> float:
    """How many times as long the call takes with the large input; the best of five tries each."""

    def seconds(value: T) -> float:
        started = time.thread_time()
        call(value)
        return time.thread_time() - started

    tries = [(seconds(small), seconds(large)) for _ in range(5)]
    return min(large_s for _, large_s in tries) / min(small_s for small_s, _ in tries)
