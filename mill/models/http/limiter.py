"""Limits the calls in flight: raised while that increases throughput, halved when the server refuses."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

FIRST_LIMIT = 4
BETTER = 1.05  # a higher limit must raise the throughput by this factor to be raised again
PROBE_EVERY = 8  # windows without gain before the limit is raised by one


class ConcurrencyLimiter:
    """Admits calls. A window is as many completed calls as the limit."""

    def __init__(self, maximum: int, clock: Callable[[], float] = time.monotonic, first: int = FIRST_LIMIT) -> None:
        self.maximum, self.limit = maximum, min(first, maximum)
        self._ceiling = maximum  # below the limit that the server refused last
        self._clock = clock
        self._busy, self._done, self._idle_windows = 0, 0, 0
        self._best_rate = 0.0
        self._window_start: float | None = None
        self._closed_until = 0.0
        self._changed = asyncio.Condition()

    async def enter(self) -> None:
        async with self._changed:
            while True:
                wait = self._closed_until - self._now()
                if wait <= 0 and self._busy < self.limit:
                    break
                if wait > 0:
                    self._changed.release()
                    try:
                        await asyncio.sleep(wait)
                    finally:
                        await self._changed.acquire()
                else:
                    await self._changed.wait()
            self._busy += 1
            if self._window_start is None:
                self._window_start = self._now()

    async def leave(self, *, ok: bool) -> None:
        async with self._changed:
            self._busy -= 1
            if ok:
                self._done += 1
                if self._done >= self.limit:
                    self._end_window()
            self._changed.notify_all()

    async def push_back(self, retry_after: float | None) -> None:
        """The server is overloaded: halve the limit, and send nothing before `retry_after` seconds have passed."""
        async with self._changed:
            self._ceiling = max(1, self.limit - 1)
            self.limit = max(1, self.limit // 2)
            self._best_rate, self._done, self._window_start = 0.0, 0, None
            if retry_after:
                self._closed_until = max(self._closed_until, self._now() + retry_after)
            self._changed.notify_all()

    def _end_window(self) -> None:
        start = self._window_start if self._window_start is not None else self._now()
        rate = self._done / max(self._now() - start, 1e-9)
        self._done, self._window_start = 0, self._now()
        if rate > self._best_rate * BETTER:
            self._best_rate, self._idle_windows = rate, 0
            self.limit = min(self._ceiling, math.ceil(self.limit * 1.5))
            return
        self._idle_windows += 1
        if self._idle_windows >= PROBE_EVERY:
            self._idle_windows, self._best_rate = 0, rate
            self.limit = min(self.maximum, self.limit + 1)
            self._ceiling = max(self._ceiling, self.limit)  # the server may take more now

    def _now(self) -> float:
        return self._clock()
