"""How long a server that refuses everything (429, 503) is waited for: bounded in all, and reported."""

from __future__ import annotations

import time
from collections.abc import Callable

from mill.api.warnings import warn
from mill.models.http.failures import Failure

LONGEST_REFUSAL_S = 600.0
REPORTED_AFTER_S, REPORTED_EVERY_S = 10.0, 60.0
FORGOTTEN_AFTER_S = 60.0  # nobody asked for so long after it was due: the next refusal is a new one


class RetryBudget:
    """Counts from the first refusal; any answer to any call ends it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._due = self._reported = float("-inf")

    def succeeded(self) -> None:
        self._since = None

    def refused(self, failure: Failure, server: str, pause: float) -> None:
        """Count a refusal after which `pause` seconds are waited; raises where that is more than anybody waits."""
        now = self._clock()
        if self._since is None or now > self._due + FORGOTTEN_AFTER_S:
            self._since = now
        waited = now - self._since
        if (failure.retry_after or 0.0) > LONGEST_REFUSAL_S:
            asked = f"the server asks to wait {failure.retry_after:.0f} s"
            raise _ended(failure, f"{asked}, longer than {LONGEST_REFUSAL_S:.0f} s")
        if waited + pause > LONGEST_REFUSAL_S:
            raise _ended(failure, f"the server has refused every request for {waited:.0f} s")
        self._due = now + pause
        if waited + pause >= REPORTED_AFTER_S and now >= self._reported + REPORTED_EVERY_S:
            self._reported = now
            warn(
                f"{server} refuses requests ({failure}): waited {waited:.0f} s, asking again in {pause:.0f} s, "
                f"for {LONGEST_REFUSAL_S:.0f} s at most"
            )


def _ended(failure: Failure, why: str) -> Failure:
    return Failure(failure.kind, f"{failure}; {why}", status=failure.status, retry_after=failure.retry_after)
