"""The words in which two texts differ, for showing them side by side."""

from __future__ import annotations

import re
from typing import Any

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
