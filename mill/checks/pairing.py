"""Two engines' answers to one sample, side by side: are they equal, where do they part, did the answer change?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from mill.api.response import Token
from mill.checks.answers import Answer
from mill.metrics.similarity import common_start, severity, similarity


@dataclass(frozen=True)
class Parting:
    """Where two texts part. `token` is None where an engine tells no tokens; `margin` is by how many nats the baseline
    preferred its own token to the next best, None where it tells no rivals."""

    char: int
    token: int | None = None
    margin: float | None = None


@dataclass(frozen=True)
class Pair:
    """A failed request is a changed answer: nobody got what the baseline gave."""

    a: Answer
    b: Answer

    @property
    def failed(self) -> bool:
        return self.a.error is not None or self.b.error is not None

    @property
    def identical(self) -> bool:
        return not self.failed and self.a.text == self.b.text and (self.a.spoken or self.a.scores == self.b.scores)

    @cached_property
    def similarity(self) -> float:
        if self.failed:
            return 0.0
        if self.a.spoken:
            return similarity(self.a.text, self.b.text)
        # A scored document: the smaller perplexity over the larger.
        return math.exp(-abs(self.a.scores[0] - self.b.scores[0]) / max(1.0, self.a.units)) if self.a.scores else 1.0

    @property
    def severity(self) -> str:
        return "failed" if self.failed else severity(self.similarity)

    @property
    def flipped(self) -> bool | None:
        """Whether the extracted answer is another one; None for samples from which none is extracted."""
        if not (self.a.comparable or self.b.comparable):
            return None
        return self.failed or self.a.extracted != self.b.extracted

    @property
    def rightness(self) -> tuple[bool, bool] | None:
        """(baseline right, candidate right), where gold is known; a failed request is not right."""
        failed_with_gold = self.failed and self.a.gold is not None
        if self.a.right is None and self.b.right is None and not failed_with_gold:
            return None
        return bool(self.a.right), bool(self.b.right)

    @cached_property
    def parting(self) -> Parting | None:
        if self.failed or self.identical or not self.a.spoken:
            return None
        return part(self.a, self.b)


def part(a: Answer, b: Answer) -> Parting:
    char = common_start(a.text, b.text)
    if not a.tokens or not b.tokens:
        return Parting(char)
    place = common_start(_names(a.tokens, b.tokens), _names(b.tokens, a.tokens))
    return Parting(char, place, margin_at(a.tokens, place))


def margin_at(tokens: Sequence[Token], place: int) -> float | None:
    """How much likelier the best token was than the second, in nats."""
    if place >= len(tokens) or len(tokens[place].top) < 2:
        return None
    (_, best), (_, second) = tokens[place].top[:2]
    return best - second if math.isfinite(best - second) else None


def _names(tokens: Sequence[Token], others: Sequence[Token]) -> list[int | str]:
    """By id where both sides tell ids, else by text."""
    by_id = all(token.id is not None for token in (*tokens, *others))
    return [token.id if by_id and token.id is not None else token.text for token in tokens]


def pair_up(first: Sequence[Answer], second: Sequence[Answer]) -> tuple[list[Pair], int]:
    """Answers to the same samples as pairs, and how many samples only one side has."""
    others = {answer.key: answer for answer in second}
    pairs = [Pair(answer, others[answer.key]) for answer in first if answer.key in others]
    return pairs, len(first) + len(second) - 2 * len(pairs)
