"""Limits the total time spent on a server that refuses every request (429, 503), and reports the wait."""

from __future__ import annotations

import time
from collections.abc import Callable

from mill.api.warnings import warn
from mill.models.http.failures import Failure

LONGEST_REFUSAL_S = 600.0
REPORTED_AFTER_S, REPORTED_EVERY_S = 10.0, 60.0
FORGOTTEN_AFTER_S = 60.0  # without a call for so long after the pause, the next refusal starts a new count


class RetryBudget:
    """Counts from the first refusal; any successful call resets it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._due = self._reported = float("-inf")

    def succeeded(self) -> None:
        self._since = None

    def refused(self, failure: Failure, server: str, pause: float) -> None:
        """Count a refusal that is followed by a pause of `pause` seconds; raises where the total would exceed the limit."""
        now = self._clock()
        if self._since is None or now > self._due + FORGOTTEN_AFTER_S:
            self._since = now
        waited = now - self._since
        if (failure.retry_after or 0.0) > LONGEST_REFUSAL_S:
            requested = f"the server asks to wait {failure.retry_after:.0f} s"
            raise _exhausted(failure, f"{requested}, longer than {LONGEST_REFUSAL_S:.0f} s")
        if waited + pause > LONGEST_REFUSAL_S:
            raise _exhausted(failure, f"the server has refused every request for {waited:.0f} s")
        self._due = now + pause
        if waited + pause >= REPORTED_AFTER_S and now >= self._reported + REPORTED_EVERY_S:
            self._reported = now
            warn(
                f"{server} refuses requests ({failure}): waited {waited:.0f} s, next retry in {pause:.0f} s, "
                f"for {LONGEST_REFUSAL_S:.0f} s at most"
            )


def _exhausted(failure: Failure, why: str) -> Failure:
    return Failure(failure.kind, f"{failure}; {why}", status=failure.status, retry_after=failure.retry_after)
