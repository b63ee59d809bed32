"""Long texts as a check's rows show them."""

from __future__ import annotations

from collections.abc import Sequence

MAX_CHARS = 4000  # of a prompt or an answer


def shown(text: str) -> str:
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]} […]"


def around(texts: Sequence[str], char: int) -> tuple[list[str], int]:
    """Long texts cut to what lies around a place, and how many characters went in front of it."""
    start = max(0, char - MAX_CHARS // 2) if max(map(len, texts)) > MAX_CHARS else 0
    mark = "[…] " if start else ""
    return [mark + shown(text[start:]) for text in texts], start - len(mark)
