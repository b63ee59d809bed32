"""Context and continuation as one sequence of token ids: the rules of scoring that all backends share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TokenPair:
    """Token ids of context and continuation, the length of the context, and how many tokens were truncated on the left."""

    ids: list[int]
    n_context: int
    truncated: int

    @property
    def fits(self) -> bool:
        """Whether at least one token of context is left; a continuation longer than the window leaves none."""
        return self.n_context > 0

    @property
    def continuation(self) -> list[int]:
        return self.ids[self.n_context :]


def make_pair(whole: list[int], n_context: int, *, window: int, prefix: int | None) -> TokenPair:
    """A pair from the ids of the whole text. An empty context is `prefix` (BOS or EOS) alone, never doubled.

    The model's input, all tokens but the last, is truncated on the left to `window` tokens.
    """
    if n_context == 0:
        n_context, whole = 1, with_prefix(whole, prefix)
    # A continuation that is merged into the context's last token is still scored, with that token.
    n_context = max(1, min(n_context, len(whole) - 1))
    cut = max(0, len(whole) - 1 - window)
    return TokenPair(whole[cut:], n_context - cut, cut)


def with_prefix(ids: list[int], prefix: int | None) -> list[int]:
    """The ids with the prefix token in front, unless they start with it already or there is none."""
    return ids if prefix is None or ids[:1] == [prefix] else [prefix, *ids]


def move_spaces(context: str, continuation: str) -> tuple[str, str]:
    """Move white space from the end of the context to the continuation, since tokens start with their space."""
    stripped = context.rstrip()
    return stripped, context[len(stripped) :] + continuation
