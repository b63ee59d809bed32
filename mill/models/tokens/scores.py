"""From logits to the log-probabilities of given tokens, a block of logits at a time; choices of one token from the
distribution of the next."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import TYPE_CHECKING

from mill.api.errors import CannotServe
from mill.api.request import ALL, Request
from mill.models.tokens.rows import Row

if TYPE_CHECKING:
    import torch


CACHED = 256


@dataclass(frozen=True)
class Distribution:
    """The highest log-probabilities of the next token, by id."""

    logprobs: dict[int, float]

    @property
    def best(self) -> int:
        return max(self.logprobs, key=self.logprobs.__getitem__)

    def top(self, count: int) -> tuple[tuple[int, float], ...]:
        """The top_logprobs, best first."""
        return tuple(nlargest(count, self.logprobs.items(), key=lambda pair: pair[1]))


class NextTokens:
    """Choices of one question need the distribution after the same prefix at the same time: they share one call.

    `fetch` gets a distribution of so many tokens.
    """

    def __init__(self, fetch: Callable[[tuple[int, ...], int], Awaitable[Distribution]]) -> None:
        self._fetch = fetch
        self._known: OrderedDict[tuple[tuple[int, ...], int], asyncio.Future[Distribution]] = OrderedDict()

    async def after(self, prefix: tuple[int, ...], count: int) -> Distribution:
        key = prefix, count
        if key not in self._known:
            self._known[key] = asyncio.ensure_future(self._fetch(prefix, count))
            if len(self._known) > CACHED:
                self._known.popitem(last=False)
        try:
            return await self._known[key]
        except BaseException:  # the next request tries again
            self._known.pop(key, None)
            raise


def requested_top_logprobs(request: Request, most: int, who: str) -> int:
    """How many top_logprobs a scored request needs at each position; the whole vocabulary is refused."""
    count = request.options.get("logprobs", 0)
    if count == ALL:
        raise CannotServe(f"{who} returns at most {most} top_logprobs")
    return int(count)


LOGIT_BLOCK = 1 << 26  # logits that are turned into log-probabilities at a time


@dataclass(frozen=True)
class TokenScores:
    """The log-probabilities of tokens, and whether each is the argmax at its position, on the model's device."""

    scores: list[torch.Tensor]
    greedy: list[torch.Tensor]

    def lists(self) -> tuple[list[float], list[bool]]:
        """As Python's numbers; waits for the device."""
        import torch

        if not self.scores:
            return [], []
        return torch.cat(self.scores).cpu().double().tolist(), torch.cat(self.greedy).tolist()


def on_device(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The copy to CUDA waits for nothing that was launched before: its source is pinned memory."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


def span_scores(logits: torch.Tensor, rows: Sequence[Row], first: int) -> list[list[tuple[float, bool]]]:
    """(sum of log-probabilities, whether every token is the argmax) for each span; `logits` start at position `first`."""
    import torch

    targets: list[tuple[int, int]] = []  # index into the flattened logits, token
    positions = logits.shape[1]
    for number, row in enumerate(rows):
        for span in row.spans:
            start = number * positions + span.start - first
            targets += [(start + offset, token) for offset, token in enumerate(span.tokens)]
    indices, tokens = (torch.tensor(column) for column in zip(*targets, strict=True))
    return _sum_spans(rows, *token_scores(logits.flatten(0, 1), indices, tokens).lists())


def token_scores(logits: torch.Tensor, indices: torch.Tensor, tokens: torch.Tensor) -> TokenScores:
    """The log-probability of each token at its index of the logits, and whether it is the argmax, a block at a time.
    `indices` and `tokens` are on the CPU."""
    scores, greedy = [], []
    block = max(1, LOGIT_BLOCK // logits.shape[-1])
    for start in range(0, len(indices), block):
        # Choices of one token share an index, whose log-softmax is computed once.
        distinct, inverse = indices[start : start + block].unique(return_inverse=True)
        chosen = logits[on_device(distinct, logits.device)].float()
        inverse, token = (on_device(one, logits.device) for one in (inverse, tokens[start : start + block]))
        # The operation of transformers' loss, so that scores agree with it to the last digit.
        scores.append(chosen.log_softmax(dim=1)[inverse, token])
        greedy.append(chosen[inverse, token] >= chosen.amax(dim=1)[inverse])
    return TokenScores(scores, greedy)


def _sum_spans(rows: Sequence[Row], scores: list[float], greedy: list[bool]) -> list[list[tuple[float, bool]]]:
    sums, start = [], 0
    for row in rows:
        row_sums = []
        for span in row.spans:
            end = start + len(span.tokens)
            row_sums.append((float(sum(scores[start:end])), all(greedy[start:end])))
            start = end
        sums.append(row_sums)
    return sums
