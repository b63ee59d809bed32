"""How alike two texts are, and how bad a difference is by that."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any

TIERS = (("identical", 1.0), ("minor", 0.8), ("moderate", 0.5), ("severe", 0.0))
_LONG = 2000  # characters beyond which words are matched instead
_MOST_WORDS = 50_000
# Words with what separates them; of scripts without spaces every character is one.
_WORDS = re.compile(r"[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+|.", re.DOTALL)


def similarity(one: str, other: str) -> float:
    """From 0 to 1: twice the matching characters over all of them. Common prefixes and suffixes match by themselves; what
    lies between is matched by difflib, or word by word by rapidfuzz where it is long."""
    if one == other:
        return 1.0
    start = common_start(one, other)
    tail = common_start(one[start:][::-1], other[start:][::-1])
    a, b = one[start : len(one) - tail], other[start : len(other) - tail]
    return 2 * (start + tail + _matching(a, b)) / (len(one) + len(other))


def common_start(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many places two sequences have in common from their start."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def _matching(a: str, b: str) -> int:
    """Characters that match in order."""
    if max(len(a), len(b)) <= _LONG:
        return sum(block.size for block in difflib.SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks())
    from rapidfuzz.distance import LCSseq

    words, others = _WORDS.findall(a), _WORDS.findall(b)
    if max(len(words), len(others)) > _MOST_WORDS:  # which words match takes memory; how many does not
        return round(LCSseq.normalized_similarity(words, others) * max(len(a), len(b)))
    blocks = LCSseq.opcodes(words, others).as_matching_blocks()
    return sum(len(word) for block in blocks for word in words[block.a : block.a + block.size])


def severity(likeness: float) -> str:
    """identical, minor (at least 0.8 alike), moderate (0.5) or severe."""
    return next(name for name, least in TIERS if likeness >= least)
