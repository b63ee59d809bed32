"""Requests that are tokenized in a thread: while weights load, or while the requests before them are computed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from mill.api.batching import Completed
from mill.api.request import LOGLIKELIHOOD, Request
from mill.models.prefix.scoring import Work
from mill.models.prefix.trie import make_trie
from mill.models.tokens.chat_template import TemplateFailed
from mill.models.tokens.pairs import TokenPair
from mill.models.tokens.rows import Row, rows_with, shared_rows
from mill.models.tokens.tokenizer import Prompt, Tokens
from mill.support.clocks import TOKENIZING, phase
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


class Tokenized:
    """Requests, each found by its object, as its content takes long to compare; with `shared`, also as rows of a trie."""

    def __init__(self, tokens: Tokens, requests: Sequence[Request], *, shared: bool) -> None:
        self._requests = list(requests)
        self._indices = {id(request): index for index, request in enumerate(self._requests)}
        self._pairs = Background(lambda: tokens.pairs(self._requests))
        self._work = Background(self._make_work) if shared else None

    def __contains__(self, request: Request) -> bool:
        return id(request) in self._indices

    def pairs(self, requests: Sequence[Request]) -> list[TokenPair]:
        pairs = self._pairs.result()
        return [pairs[self._indices[id(request)]] for request in requests]

    def _make_work(self) -> Work:
        pairs = zip(self._requests, self._pairs.result(), strict=True)
        scored = [(request, pair) for request, pair in pairs if pair.fits and pair.continuation]  # the others are errors
        rows = shared_rows([request for request, _ in scored], [pair for _, pair in scored])
        return Work(rows, make_trie([row.ids for row in rows]))

    def work(self, requests: Sequence[Request]) -> Work | None:
        """The rows of these requests and their trie; None where there is none for just these."""
        work = self._work.result() if self._work is not None else None
        rows = rows_with(work.rows, requests) if work is not None else None
        if work is None or rows is None:
            return None
        return work if rows == work.rows else Work(rows, work.trie)  # without requests whose content others have, too


class Ahead:
    """What is tokenized in a thread now. With `in_parts`, scored requests are: the first of them while weights load, the
    others while a device that leaves the interpreter alone computes those."""

    def __init__(self, *, in_parts: bool) -> None:
        self.in_parts = in_parts
        self.scored: Tokenized | None = None
        self._asked: Sequence[Request] = ()
        self._prompts: Background[list[Prompt]] | None = None

    def score(self, tokens: Tokens, requests: Sequence[Request], *, shared: bool) -> None:
        """Begin with requests that are scored next."""
        self.scored = Tokenized(tokens, requests, shared=shared)

    def score_first(self, tokens: Tokens, requests: Sequence[Request], *, shared: bool) -> None:
        count = first_part(requests) if self.in_parts else len(requests)
        self.score(tokens, requests[:count], shared=shared)

    def generate(self, tokens: Background[Tokens], requests: Sequence[Request]) -> None:
        """Begin with prompts of generation, as soon as the tokenizer is loaded."""
        self._asked = list(requests)
        self._prompts = Background(lambda: tokens.result().prompts(self._asked))

    def parts(self, tokens: Tokens, requests: Sequence[Request], *, shared: bool) -> list[Sequence[Request]]:
        """Requests that are tokenized, and the others; all at once where they share no prefixes."""
        if not shared:
            return [requests] if requests else []
        if self.scored is None and self.in_parts and first_part(requests) < len(requests):
            self.score_first(tokens, requests, shared=True)
        ahead = self.scored if self.scored is not None else ()
        first = [request for request in requests if request in ahead]
        others = [request for request in requests if request not in ahead]
        return [part for part in (first, others) if part]

    def rows(self, tokens: Tokens, requests: Sequence[Request]) -> tuple[list[Row], Work | None, list[Completed]]:
        """The requests that can be scored, as rows, with their trie if a thread made it; and the errors of the others."""
        ahead, self.scored = self.scored, None
        if ahead is not None and all(request in ahead for request in requests):
            with phase(TOKENIZING), suppress(TemplateFailed):  # which of them is found below
                fitting, pairs, errors = tokens.fitting(requests, ahead.pairs(requests))
                work = ahead.work(fitting)
                return list(work.rows) if work is not None else shared_rows(fitting, pairs), work, errors
        fitting, pairs, errors = tokens.scorable(requests)
        return shared_rows(fitting, pairs), None, errors

    def prompts(self, tokens: Tokens, requests: Sequence[Request]) -> tuple[list[Prompt], list[Completed]]:
        """The prompts of these requests, and the errors of those that cannot be rendered."""
        ahead, self._prompts = self._prompts, None
        if ahead is not None and {id(request) for request in requests} <= set(map(id, self._asked)):
            with suppress(TemplateFailed):
                prompts = {id(prompt.request): prompt for prompt in ahead.result()}
                return [prompts[id(request)] for request in requests], []
        return tokens.answerable(requests)
