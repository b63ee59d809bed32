"""Texts for the pages: the words in which two differ, and bounds on what one answer of the server holds."""

from __future__ import annotations

import re
from typing import Any

MOST_TEXT = 100_000  # characters of one text
MOST_ITEMS = 5_000  # of one list
MOST_TOTAL = 2_000_000  # characters of all texts together
MOST_DEPTH = 40


class Shortener:
    """Copies data with long texts and lists cut; `cut` counts what was left out, so that the page can report it."""

    def __init__(self) -> None:
        self.characters, self.items, self._left = 0, 0, MOST_TOTAL

    def __call__(self, data: Any, depth: int = 0) -> Any:
        if isinstance(data, str):
            return self._text(data)
        if depth >= MOST_DEPTH and isinstance(data, (dict, list)):
            self.items += 1
            return "…"
        if isinstance(data, dict):
            return {self._text(str(name)): self(value, depth + 1) for name, value in self._bounded(list(data.items()))}
        return [self(value, depth + 1) for value in self._bounded(data)] if isinstance(data, (list, tuple)) else data

    @property
    def cut(self) -> dict[str, int]:
        return {"characters": self.characters, "items": self.items}

    def _text(self, text: str) -> str:
        most = min(MOST_TEXT, max(200, self._left))
        self._left -= min(len(text), most)
        if len(text) <= most:
            return text
        self.characters += len(text) - most
        return text[:most]

    def _bounded(self, items: Any) -> Any:
        self.items += max(0, len(items) - MOST_ITEMS)
        return items[:MOST_ITEMS]


MOST_WORDS = 20_000  # of both texts together; longer ones show their first difference alone
_WORDS = re.compile(r"\s+|[^\W_]+|.", re.DOTALL)


def diff_words(first: str, second: str) -> list[dict[str, Any]] | None:
    """Segments in order: `same` is in both texts; `a` and `b` are what each text has instead of the other's, which may be
    nothing. None for long texts."""
    from rapidfuzz.distance import Indel

    a, b = _WORDS.findall(first), _WORDS.findall(second)
    if len(a) + len(b) > MOST_WORDS:
        return None
    segments: list[dict[str, Any]] = []
    for step in Indel.opcodes(a, b):
        own, other = "".join(a[step.src_start : step.src_end]), "".join(b[step.dest_start : step.dest_end])
        if step.tag == "equal":
            segments.append({"same": own})
        elif segments and "a" in segments[-1]:  # an insertion beside a deletion replaces it
            segments[-1] = {"a": segments[-1]["a"] + own, "b": segments[-1]["b"] + other}
        else:
            segments.append({"a": own, "b": other})
    return segments
