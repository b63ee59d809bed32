"""Distributions of the next token that several requests need: each is fetched once and cached for a while."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from heapq import nlargest

from mill.api.errors import CannotServe
from mill.api.request import ALL, Request

CACHED = 256


@dataclass(frozen=True)
class Distribution:
    """The `count` highest log-probabilities of the next token, by id."""

    logprobs: dict[int, float]
    count: int

    @property
    def best(self) -> int:
        return max(self.logprobs, key=self.logprobs.__getitem__)

    def top(self, count: int) -> tuple[tuple[int, float], ...]:
        """The top_logprobs, best first."""
        return tuple(nlargest(count, self.logprobs.items(), key=lambda pair: pair[1]))


class NextTokens:
    """Choices of one question need the distribution after the same prefix at the same time: they share one call.

    `fetch` gets a distribution of at least `count` tokens.
    """

    def __init__(self, fetch: Callable[[tuple[int, ...], int], Awaitable[Distribution]]) -> None:
        self._fetch = fetch
        self._known: OrderedDict[tuple[int, ...], asyncio.Future[Distribution]] = OrderedDict()

    async def after(self, prefix: tuple[int, ...], count: int) -> Distribution:
        known = self._known.get(prefix)
        if known is not None and (not known.done() or _usable(known, count)):
            distribution = await known
            if distribution.count >= count:
                return distribution
        task = asyncio.ensure_future(self._fetch(prefix, count))
        self._known[prefix] = task
        while len(self._known) > CACHED:
            self._known.popitem(last=False)
        return await task


def _usable(task: asyncio.Future[Distribution], count: int) -> bool:
    return not task.cancelled() and task.exception() is None and task.result().count >= count


def requested_top_logprobs(request: Request, most: int, who: str) -> int:
    """How many top_logprobs a scored request needs at each position; the whole vocabulary is refused."""
    count = request.options.get("logprobs", 0)
    if count == ALL:
        raise CannotServe(f"{who} returns at most {most} top_logprobs")
    return int(count)
