"""The words in which two texts differ, for showing them side by side."""

from __future__ import annotations

import re
from typing import Any

MOST_WORDS = 20_000  # of both texts together; longer ones show their first difference alone
_WORDS = re.compile(r"\s+|[^\W_]+|.", re.DOTALL)


def diff_words(first: str, second: str) -> list[dict[str, Any]] | None:
    """Segments in order: `same` is in both texts, `a` only in the first, `b` only in the second. None for long texts."""
    from rapidfuzz.distance import Indel

    a, b = _WORDS.findall(first), _WORDS.findall(second)
    if len(a) + len(b) > MOST_WORDS:
        return None
    segments: list[dict[str, Any]] = []
    for step in Indel.opcodes(a, b):
        texts = "".join(a[step.src_start : step.src_end]), "".join(b[step.dest_start : step.dest_end])
        if step.tag == "equal":
            segments.append({"same": texts[0]})
            continue
        segments += [{side: text} for side, text in zip("ab", texts, strict=True) if text]
    return segments
