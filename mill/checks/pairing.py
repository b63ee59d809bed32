"""Two engines' answers to one sample, side by side: are they equal, where do they part, did the answer change?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from mill.api.response import Token
from mill.checks.answers import CHOICE, DOCUMENT, TEXT, Answer
from mill.metrics.similarity import common_start, severity, similarity

EMPTY, FAILED = "empty", "failed"  # severities beside those of similarity


@dataclass(frozen=True)
class Divergence:
    """Where two texts part. `token` is None where an engine tells no tokens; `margin` is by how many nats the baseline
    preferred its own token to the next best, None where it tells no top_logprobs."""

    char: int
    token: int | None = None
    margin: float | None = None


@dataclass(frozen=True)
class AnswerPair:
    """A failed request is a changed answer: nobody got what the baseline gave. Two empty answers are no agreement: neither
    engine said anything."""

    a: Answer
    b: Answer

    @property
    def failed(self) -> bool:
        return self.a.error is not None or self.b.error is not None

    @property
    def both_empty(self) -> bool:
        return self.a.empty and self.b.empty

    @property
    def texts(self) -> bool:
        """Whether two texts can be compared."""
        return self.a.form == TEXT and not self.both_empty

    @property
    def identical(self) -> bool:
        if self.failed or self.both_empty:
            return False
        return self.a.scores == self.b.scores if self.a.form == DOCUMENT else self.a.text == self.b.text

    @cached_property
    def similarity(self) -> float:
        if self.failed:
            return 0.0
        if self.a.form == CHOICE:
            return float(self.identical)
        if self.a.form == TEXT:
            return similarity(self.a.text, self.b.text)
        # A scored document: the smaller perplexity over the larger.
        shift = score_shift(self.a.scores[0], self.b.scores[0]) if self.a.scores and self.b.scores else 0.0
        return math.exp(-shift / max(1.0, self.a.units))

    @property
    def severity(self) -> str:
        if self.failed:
            return FAILED
        return EMPTY if self.both_empty else severity(self.similarity)

    @property
    def unextracted(self) -> bool:
        """Whether there should be an answer to extract, and neither text has one: that is no agreement."""
        asked = self.a.comparable or self.b.comparable
        return asked and not self.failed and self.a.extracted is None and self.b.extracted is None

    @property
    def flipped(self) -> bool | None:
        """Whether the extracted answer is another one; None for samples from which none is extracted."""
        if not (self.a.comparable or self.b.comparable) or self.unextracted:
            return None
        return self.failed or self.a.extracted != self.b.extracted

    @property
    def valued(self) -> bool:
        """Whether the sample counts in a score: each side has a value, or failed to get one. A sample that fails on both
        sides counts where a gold answer says that there was something to get."""
        known = [one.value is not None for one in (self.a, self.b)]
        missing = any(one.value is None and one.error is None for one in (self.a, self.b))
        return not missing and (any(known) or self.a.gold is not None)

    @property
    def right(self) -> tuple[bool | None, bool | None]:
        """Whether each side is right; None where its value is neither 0 nor 1."""
        return _right(self.a), _right(self.b)

    @cached_property
    def divergence(self) -> Divergence | None:
        if self.failed or self.identical or not self.texts:
            return None
        return part(self.a, self.b)


def _right(answer: Answer) -> bool | None:
    return answer.value == 1.0 if answer.value in (0.0, 1.0) else None


def score_shift(one: float, other: float) -> float:
    """By how much a log-probability changed. What is impossible to both engines has not changed."""
    return 0.0 if one == other else abs(other - one)


def part(a: Answer, b: Answer) -> Divergence:
    """Where an answer ends before the other, the engine that went on says how clear that was."""
    char = common_start(a.text, b.text)
    if not a.tokens or not b.tokens:
        return Divergence(char)
    index = common_start(_names(a.tokens, b.tokens), _names(b.tokens, a.tokens))
    margin = margin_at(a.tokens, index)
    return Divergence(char, index, margin_at(b.tokens, index) if index >= len(a.tokens) else margin)


def margin_at(tokens: Sequence[Token], index: int) -> float | None:
    """How much likelier the best token was than the second, in nats."""
    if index >= len(tokens) or len(tokens[index].top) < 2:
        return None
    best, second = sorted((value for _, value in tokens[index].top), reverse=True)[:2]
    return best - second if math.isfinite(best - second) else None


def _names(tokens: Sequence[Token], others: Sequence[Token]) -> list[int | str]:
    """By id where both sides tell ids, else by text."""
    by_id = all(token.id is not None for token in (*tokens, *others))
    return [token.id if by_id and token.id is not None else token.text for token in tokens]


@dataclass(frozen=True)
class Pairing:
    """Answers to the same samples as pairs, and what could not be paired."""

    pairs: list[AnswerPair]
    alone: int = 0
    """Samples that only one side has."""
    other_data: int = 0
    """Of those, samples that have the same task and id on both sides, but other data."""
    other_prompts: int = 0
    """Pairs whose prompts differ: the same data, rendered with other settings."""


Waiting = dict[tuple[str, str], dict[str, Answer]]
"""Task and digest -> the answers that have no partner yet, by id."""


def pair_up(first: Sequence[Answer], second: Sequence[Answer]) -> Pairing:
    """AnswerPair answers to the same data, whatever its ids; equal rows go by id, then by order."""
    waiting: Waiting = {}
    for answer in second:
        for digest in _digests(answer):
            waiting.setdefault((answer.task, digest), {})[answer.id] = answer
    partners: dict[int, Answer] = {}
    for same_id in (True, False):
        for answer in first:
            if id(answer) not in partners and (other := _take_partner(answer, waiting, same_id=same_id)) is not None:
                partners[id(answer)] = other
    pairs = [AnswerPair(answer, partners[id(answer)]) for answer in first if id(answer) in partners]
    unpaired = [answer for answer in first if id(answer) not in partners]
    left = {(one.task, one.id) for bucket in waiting.values() for one in bucket.values()}
    return Pairing(
        pairs,
        alone=len(first) + len(second) - 2 * len(pairs),
        other_data=sum((answer.task, answer.id) in left for answer in unpaired),
        other_prompts=sum(pair.a.prompt != pair.b.prompt for pair in pairs),
    )


def _digests(answer: Answer) -> list[str]:
    return [digest for digest in (answer.doc_hash, answer.question) if digest] or [f"id {answer.id}"]


def _take_partner(answer: Answer, waiting: Waiting, *, same_id: bool) -> Answer | None:
    for digest in _digests(answer):
        bucket = waiting.get((answer.task, digest), {})
        other = bucket.get(answer.id) if same_id else next(iter(bucket.values()), None)
        if other is not None:
            for one in _digests(other):
                waiting[other.task, one].pop(other.id, None)
            return other
    return None
