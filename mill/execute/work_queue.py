"""The requests that several workers share: taken in chunks, given back by a worker that died."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Sequence

from mill.api.message import Context
from mill.api.request import GENERATE, MULTI_ROUND, Request

MAX_DEATHS = 3  # of workers by one request, before it is given up
SHARE = 0.7  # of an equal split, in the next chunk
_CHARACTERS_A_TOKEN = 4


class WorkQueue:
    """Large chunks first and smaller ones towards the end, so that all workers finish together.

    Requests with a shared prefix are neighbours, and those with the same context are never split: a worker computes what
    they share once. Safe to use from several threads.
    """

    def __init__(self, requests: Sequence[Request], workers: int) -> None:
        groups: dict[Context, list[Request]] = {}
        for request in requests:
            groups.setdefault(request.context, []).append(request)
        ordered = sorted(groups.values(), key=lambda group: group[0].text)
        self._untaken = deque((group, sum(map(_cost, group))) for group in ordered)
        self.groups = len(self._untaken)
        """The number of distinct contexts: more workers than that have nothing to do."""
        self._left = sum(cost for _, cost in self._untaken)
        self._least = self._left / (8 * workers) if workers > 1 else self._left
        self._workers = workers
        self._returned: deque[list[Request]] = deque()
        self._deaths: Counter[str] = Counter()
        self._open = len(requests)
        self._changed = threading.Condition()

    def take(self) -> list[Request] | None:
        """The next chunk; None when every request has an answer. Waits while others may still give some back."""
        with self._changed:
            while not self._untaken and not self._returned and not self.over:
                self._changed.wait()
            if self.over:
                return None
            return self._returned.popleft() if self._returned else self._next()

    def done(self, count: int) -> None:
        """So many requests have their answers."""
        with self._changed:
            self._open -= count
            self._changed.notify_all()

    @property
    def over(self) -> bool:
        """Whether every request has its answer, or the work was stopped."""
        return self._open <= 0

    def stop(self) -> None:
        """No more chunks are given out."""
        with self._changed:
            self._open = 0
            self._changed.notify_all()

    def give_back(self, requests: Sequence[Request]) -> list[Request]:
        """What a worker that died had not answered. Requests that see their second worker die are halved from then on, until
        the one that kills workers is alone; that one is given up in the end and returned."""
        with self._changed:
            self._deaths.update(request.key for request in requests)
            deaths = max((self._deaths[request.key] for request in requests), default=0)
            if len(requests) == 1 and deaths >= MAX_DEATHS:
                return list(requests)
            middle = (len(requests) + 1) // 2 if deaths > 1 else len(requests)
            self._return(requests[:middle], requests[middle:])
            return []

    def put_back(self, requests: Sequence[Request]) -> None:
        """What a worker that is alive did not answer."""
        with self._changed:
            self._return(requests)

    def _return(self, *parts: Sequence[Request]) -> None:
        self._returned.extend(list(part) for part in parts if part)
        self._changed.notify_all()

    def _next(self) -> list[Request]:
        wanted = max(self._least, SHARE * self._left / self._workers)
        chunk: list[Request] = []
        taken = 0.0
        while self._untaken and (not chunk or taken < wanted):
            group, cost = self._untaken.popleft()
            chunk += group
            taken += cost
        self._left -= taken
        return chunk


def _cost(request: Request) -> float:
    """A rough estimate of the time a request takes, in characters."""
    generated = int(request.options.get("max_gen_toks", 0)) if request.kind in (GENERATE, MULTI_ROUND) else 0
    return 1 + len(request.text) + len(request.continuation) + _CHARACTERS_A_TOKEN * generated
