"""The one way in which tests wait: for a condition, with one generous deadline and a failure that says what was missing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

DEADLINE_S = 300.0
"""Long enough for a machine that is busy with other work; a test that passes never waits for it."""

T = TypeVar("T")


def until(condition: Callable[[], T], what: str | Callable[[], str], seconds: float = DEADLINE_S, pause: float = 0.005) -> T:
    """The first value of the condition that is true. `what` finishes the sentence "after 300 s there was still no …"."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"after {seconds:.0f} s there was still no {what() if callable(what) else what}")
        time.sleep(pause)
    return value


def hold(computed: int, most: str) -> None:
    """Keeps a model at work that has computed the most requests that it may: so many, or the number in a file, in which the
    test writes a larger one. Without either it goes on."""
    if most:
        until(lambda: computed < int(most if most.isdigit() else Path(most).read_text() or 0), f"number above {computed}")
