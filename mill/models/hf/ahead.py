"""Requests that are tokenized in a thread: while weights load, or while the requests before them are computed."""

from __future__ import annotations

from collections.abc import Sequence

from mill.api.request import LOGLIKELIHOOD, Request
from mill.models.prefix.packed_scoring import Work
from mill.models.prefix.trie import make_trie
from mill.models.tokens.pairs import TokenPair
from mill.models.tokens.rows import rows_with, shared_rows
from mill.models.tokens.tokenizer import Prompt, Tokens
from mill.support.processes import Background

FIRST_PART = 8192  # requests: a device that computes them is busy while the others are tokenized
HEAD = 256  # characters by which contexts that share examples are recognized


def is_plain(request: Request) -> bool:
    """Whether a request is scored by the tokens of its text alone."""
    return request.kind == LOGLIKELIHOOD and not request.media and not request.options.get("logprobs")


def first_part(requests: Sequence[Request]) -> int:
    """How many requests to tokenize before the others: about FIRST_PART, or all where the others have the same prefixes,
    which would be computed twice."""
    if len(requests) < 2 * FIRST_PART:
        return len(requests)
    heads = [request.text[:HEAD] for request in requests]
    ends = range(FIRST_PART, len(requests))
    end = next((end for end in ends if heads[end] != heads[end - 1]), len(requests))
    return len(requests) if set(heads[:end]) & set(heads[end:]) else end


class TokenizedAhead:
    """Requests, each found by its object, as its content takes long to compare; with `shared`, also as rows of a trie."""

    def __init__(self, tokens: Tokens, requests: Sequence[Request], *, shared: bool) -> None:
        self._requests = list(requests)
        self._indices = {id(request): index for index, request in enumerate(self._requests)}
        self._pairs = Background(lambda: tokens.pairs(self._requests))
        self._work = Background(self._make_work) if shared else None

    def __contains__(self, request: Request) -> bool:
        return id(request) in self._indices

    def pairs_of(self, requests: Sequence[Request]) -> list[TokenPair]:
        pairs = self._pairs.result()
        return [pairs[self._indices[id(request)]] for request in requests]

    def _make_work(self) -> Work:
        pairs = zip(self._requests, self._pairs.result(), strict=True)
        scored = [(request, pair) for request, pair in pairs if pair.fits and pair.continuation]  # the others are errors
        rows = shared_rows([request for request, _ in scored], [pair for _, pair in scored])
        return Work(rows, make_trie([row.ids for row in rows]))

    def work_of(self, requests: Sequence[Request]) -> Work | None:
        """The rows of these requests and their trie; None where there is none for just these."""
        work = self._work.result() if self._work is not None else None
        rows = rows_with(work.rows, requests) if work is not None else None
        if work is None or rows is None:
            return None
        return work if rows == work.rows else Work(rows, work.trie)  # without requests whose content others have, too


class PromptsAhead:
    """Prompts of generation, each found by its request's object."""

    def __init__(self, tokens: Background[Tokens], requests: Sequence[Request]) -> None:
        self._requests = list(requests)
        self._indices = {id(request): index for index, request in enumerate(self._requests)}
        self._prompts = Background(lambda: tokens.result().prompts(self._requests))

    def prompts_of(self, requests: Sequence[Request]) -> list[Prompt] | None:
        """None where one of them was not tokenized."""
        if not all(id(request) in self._indices for request in requests):
            return None
        prompts = self._prompts.result()
        return [prompts[self._indices[id(request)]] for request in requests]
