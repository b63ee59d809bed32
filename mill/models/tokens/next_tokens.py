"""Distributions of the next token that several requests ask for: each is fetched once and kept for a while."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from heapq import nlargest

from mill.api.errors import CannotServe
from mill.api.request import ALL, Request

KEPT = 256


@dataclass(frozen=True)
class Distribution:
    """Log-probabilities of the `count` likeliest next tokens, by id."""

    logprobs: dict[int, float]
    count: int

    @property
    def best(self) -> int:
        return max(self.logprobs, key=self.logprobs.__getitem__)

    def top(self, count: int) -> tuple[tuple[int, float], ...]:
        """The likeliest tokens, best first."""
        return tuple(nlargest(count, self.logprobs.items(), key=lambda pair: pair[1]))


class NextTokens:
    """Choices of one question ask for the same prefix at the same time and share one call.

    `ask` fetches a distribution of at least so many tokens.
    """

    def __init__(self, ask: Callable[[tuple[int, ...], int], Awaitable[Distribution]]) -> None:
        self._ask = ask
        self._known: OrderedDict[tuple[int, ...], asyncio.Future[Distribution]] = OrderedDict()

    async def after(self, prefix: tuple[int, ...], count: int) -> Distribution:
        known = self._known.get(prefix)
        if known is not None and (not known.done() or _usable(known, count)):
            found = await known
            if found.count >= count:
                return found
        task = asyncio.ensure_future(self._ask(prefix, count))
        self._known[prefix] = task
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        return await task


def _usable(task: asyncio.Future[Distribution], count: int) -> bool:
    return not task.cancelled() and task.exception() is None and task.result().count >= count


def requested_top_logprobs(request: Request, most: int, who: str) -> int:
    """How many of the likeliest tokens a scored request wants to be told at each place; refused where it wants all."""
    asked = request.options.get("logprobs", 0)
    if asked == ALL:
        raise CannotServe(f"{who} tells at most {most} of the likeliest tokens")
    return int(asked)
