"""Context and continuation as one sequence of token ids: the rules of scoring that all backends share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class TokenPair:
    """Token ids of context and continuation, the length of the context, and how many tokens were truncated on the left.

    Pairs with an equal context may have its first tokens as the same object, `head`.
    """

    tail: list[int]
    n_context: int
    truncated: int
    head: list[int] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        return self.head + self.tail

    @property
    def input_key(self) -> tuple[Any, ...]:
        """Equal for pairs whose inputs, all tokens but the last, have the same head and are equal."""
        return id(self.head) if self.head else 0, *self.tail[:-1]

    @property
    def fits(self) -> bool:
        """Whether at least one token of context is left; a continuation longer than the window leaves none."""
        return self.n_context > 0

    @property
    def continuation(self) -> list[int]:
        start = self.n_context - len(self.head)
        return self.tail[start:] if start >= 0 else self.ids[self.n_context :]


def make_pair(
    tail: list[int], n_context: int, *, window: int, prefix: int | None, head: list[int] | None = None
) -> TokenPair:
    """A pair from the ids of the whole text, `head` and `tail`. An empty context is `prefix` (BOS or EOS), never doubled.

    The model's input, all tokens but the last, is truncated on the left to `window` tokens.
    """
    head = head or []
    if n_context == 0:
        n_context, tail = 1, with_prefix(tail, prefix)
    length = len(head) + len(tail)
    # A continuation that is merged into the context's last token is still scored, with that token.
    n_context = max(1, min(n_context, length - 1))
    cut = max(0, length - 1 - window)
    return TokenPair((head + tail)[cut:], n_context - cut, cut) if cut else TokenPair(tail, n_context, 0, head)


def with_prefix(ids: list[int], prefix: int | None) -> list[int]:
    """The ids with the prefix token in front, unless they start with it already or there is none."""
    return ids if prefix is None or ids[:1] == [prefix] else [prefix, *ids]


def move_spaces(context: str, continuation: str) -> tuple[str, str]:
    """Move white space from the end of the context to the continuation, since tokens start with their space."""
    stripped = context.rstrip()
    return stripped, context[len(stripped) :] + continuation
