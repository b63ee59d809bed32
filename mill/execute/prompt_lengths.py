"""Estimates of the tokens of prompts, from those that were counted."""

from __future__ import annotations

import math

from mill.api.budget import MOST_TOKENS
from mill.api.request import Request

TOKENS_PER_CHARACTER = 0.25  # until there are responses


class PromptLengths:
    """How many tokens prompts have, by their length in characters; true where some were counted."""

    def __init__(self) -> None:
        self._tokens = self._characters = 0
        self._largest_share = self._most_above = 0.0

    def __bool__(self) -> bool:
        return self._characters > 0

    def add(self, tokens: int, characters: int) -> None:
        tokens = min(tokens, MOST_TOKENS)
        self._tokens, self._characters = self._tokens + tokens, self._characters + characters
        if characters:
            self._largest_share = max(self._largest_share, tokens / characters)
            self._most_above = max(self._most_above, tokens - characters * self._share)

    def mean(self, characters: int) -> int:
        return math.ceil(characters * self._share)

    def most(self, characters: int) -> int:
        """As many as the prompt with the most tokens for its length would have, or as the one farthest above the mean is
        above it, whichever is less: a short prompt has many for its length, and a long one may be far above the mean."""
        if not self:
            return self.mean(characters)
        return math.ceil(min(characters * self._largest_share, characters * self._share + self._most_above))

    @property
    def _share(self) -> float:
        return self._tokens / self._characters if self._characters else TOKENS_PER_CHARACTER


def prompt_length(request: Request) -> int:
    """The length of a prompt in characters, with the tools that it describes."""
    return len(request.text) + sum(len(str(tool.to_dict())) for tool in request.tools)
