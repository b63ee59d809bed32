"""Excerpts of long texts for the rows of a check."""

from __future__ import annotations

from collections.abc import Sequence

MAX_CHARS = 4000  # of a prompt or an answer


def excerpt(text: str, most: int = MAX_CHARS) -> str:
    return text if len(text) <= most else f"{text[:most]} […]"


def excerpts_around(texts: Sequence[str], char: int) -> tuple[list[str], int]:
    """Long texts cut to the part around an offset, and how many characters were removed before it."""
    start = max(0, char - MAX_CHARS // 2) if max(map(len, texts)) > MAX_CHARS else 0
    mark = "[…] " if start else ""
    return [mark + excerpt(text[start:]) for text in texts], start - len(mark)
