"""Pairs of two engines' answers to one sample: whether they are equal, where they diverge, whether the answer changed.

Rows of a check have excerpts of long texts around the divergence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from mill.api.response import Token
from mill.checks.answers import CHOICE, DOCUMENT, TEXT, Answer
from mill.metrics.differences import FAILED, LOWER, Value, direction
from mill.metrics.divergence import common_start, severity, similarity
from mill.store.sample_row import SampleRow

MAX_CHARS = 4000  # of a prompt or an answer


def excerpt(text: str, most: int = MAX_CHARS) -> str:
    return text if len(text) <= most else f"{text[:most]} […]"


def excerpts_around(texts: Sequence[str], char: int) -> tuple[list[str], int]:
    """Long texts cut to the part around an offset, and how many characters were removed before it."""
    start = max(0, char - MAX_CHARS // 2) if max(map(len, texts)) > MAX_CHARS else 0
    mark = "[…] " if start else ""
    return [mark + excerpt(text[start:]) for text in texts], start - len(mark)


EMPTY = "empty"  # with `failed` a severity beside those of similarity


@dataclass(frozen=True)
class Divergence:
    """Where two texts diverge. `char` is the offset of the first character that differs. `token` is the number of the first
    token that differs, 1 for the first; None where an engine returns no tokens. `margin` is by how many nats the baseline
    preferred its token to the next best; None where it returns no top_logprobs."""

    char: int
    token: int | None = None
    margin: float | None = None


@dataclass(frozen=True)
class AnswerPair:
    """The baseline's answer `a` and the candidate's answer `b` to one repeat of a sample. A failed request counts as a
    changed answer. Two empty answers count as neither equal nor changed."""

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
    def same_tokens(self) -> bool:
        """Whether both engines scored a document, as the same number of tokens."""
        return 0 < self.a.scored_tokens == self.b.scored_tokens

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
        return math.exp(-shift / max(1.0, self.a.scored_tokens if self.same_tokens else self.a.units))

    @property
    def severity(self) -> str:
        if self.failed:
            return FAILED
        return EMPTY if self.both_empty else severity(self.similarity)

    @property
    def unextracted(self) -> bool:
        """Whether the task extracts an answer and neither text has one: that is no agreement."""
        extracts = self.a.comparable or self.b.comparable
        return extracts and not self.failed and self.a.extracted is None and self.b.extracted is None

    @property
    def flipped(self) -> bool | None:
        """Whether the extracted answer changed; None for samples from which none is extracted."""
        if not (self.a.comparable or self.b.comparable) or self.unextracted:
            return None
        return self.failed or self.a.extracted != self.b.extracted

    @property
    def values(self) -> tuple[Value, Value]:
        """What the sample counts with on both sides. One that fails on both counts if it has a gold answer."""
        both = self.a.counts, self.b.counts
        return (None, None) if both == (FAILED, FAILED) and self.a.gold is None else both

    @property
    def right(self) -> tuple[bool | None, bool | None]:
        """Whether each side is right; None where its value is neither 0 nor 1."""
        return _right(self.a), _right(self.b)

    @cached_property
    def divergence(self) -> Divergence | None:
        if self.failed or self.identical or not self.texts:
            return None
        return find_divergence(self.a, self.b)


def _right(answer: Answer) -> bool | None:
    best = 0.0 if direction(answer.metric) == LOWER else 1.0
    return answer.value == best if answer.value in (0.0, 1.0) else None


def score_shift(a: float, b: float) -> float:
    """By how much a log-probability changed. A choice that is impossible to both engines has not changed."""
    return 0.0 if a == b else abs(b - a)


def find_divergence(a: Answer, b: Answer) -> Divergence:
    """Where one answer ends before the other, the margin is that of the engine whose answer is longer."""
    char = common_start(a.text, b.text)
    if not a.tokens or not b.tokens:
        return Divergence(char)
    index = common_start(_token_names(a.tokens, b.tokens), _token_names(b.tokens, a.tokens))
    margin = margin_at(b.tokens if index >= len(a.tokens) else a.tokens, index)
    return Divergence(char, index + 1, margin)


def margin_at(tokens: Sequence[Token], index: int) -> float | None:
    """The log-probability of the best token minus that of the second best, in nats."""
    if index >= len(tokens) or len(tokens[index].top) < 2:
        return None
    best, second = sorted((value for _, value in tokens[index].top), reverse=True)[:2]
    return best - second if math.isfinite(best - second) else None


def _token_names(tokens: Sequence[Token], others: Sequence[Token]) -> list[int | str]:
    """Token ids where both sides have them, else token texts."""
    by_id = all(token.id is not None for token in (*tokens, *others))
    return [token.id if by_id and token.id is not None else token.text for token in tokens]


S = TypeVar("S", Answer, SampleRow)
"""Samples are paired by digests of their data and of their first request, empty where unknown. Those of one side with the
same task and id are repeats of one sample."""
Repeats = list[S]
Candidates = dict[tuple[str, str], dict[str | int, Repeats[S]]]
"""Task and digest -> the samples that are not paired yet, by id."""


@dataclass(frozen=True)
class Pairs(Generic[S]):
    """The samples that two sides share, repeat by repeat, and counts of what could not be paired."""

    pairs: list[tuple[S, S]]
    unpaired: int = 0
    """Samples that only one side has."""
    different_data: int = 0
    """Samples among them with the same task and id on both sides, but different data."""


def pair(first: Sequence[S], second: Sequence[S]) -> Pairs[S]:
    """Pair samples of the same data, whatever their ids; rows with equal data are paired by id, then in order. The side with
    fewer repeats goes through them again."""
    sides = _samples(first), _samples(second)
    candidates: Candidates[S] = {}
    for repeats in sides[1]:
        for digest in _digests(repeats[0]):
            candidates.setdefault((repeats[0].task, digest), {})[repeats[0].id] = repeats
    partners: dict[int, Repeats[S]] = {}
    for same_id in (True, False):
        for number, repeats in enumerate(sides[0]):
            if number not in partners and (other := _take_partner(repeats[0], candidates, same_id=same_id)) is not None:
                partners[number] = other
    remaining = {(other[0].task, other[0].id) for bucket in candidates.values() for other in bucket.values()}
    alone = [repeats[0] for number, repeats in enumerate(sides[0]) if number not in partners]
    matched = [(repeats, partners[number]) for number, repeats in enumerate(sides[0]) if number in partners]
    return Pairs(
        [
            (repeats[index % len(repeats)], others[index % len(others)])
            for repeats, others in matched
            for index in range(max(len(repeats), len(others)))
        ],
        unpaired=len(sides[0]) + len(sides[1]) - 2 * len(partners),
        different_data=sum((sample.task, sample.id) in remaining for sample in alone),
    )


def _samples(rows: Sequence[S]) -> list[Repeats[S]]:
    found: dict[tuple[str, str | int], Repeats[S]] = {}
    for row in rows:
        found.setdefault((row.task, row.id), []).append(row)
    return list(found.values())


def _digests(sample: Answer | SampleRow) -> list[str]:
    return [digest for digest in (sample.data_hash, sample.request_key) if digest] or [f"id {sample.id}"]


def _take_partner(sample: S, candidates: Candidates[S], *, same_id: bool) -> Repeats[S] | None:
    for digest in _digests(sample):
        bucket = candidates.get((sample.task, digest), {})
        other = bucket.get(sample.id) if same_id else next(iter(bucket.values()), None)
        if other is not None:
            for other_digest in _digests(other[0]):
                candidates[sample.task, other_digest].pop(other[0].id, None)
            return other
    return None
