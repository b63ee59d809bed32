"""Bounds on what one answer of the server holds: a sample may have texts of 100 MB, and a page cannot show them."""

from __future__ import annotations

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
