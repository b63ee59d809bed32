"""Similarity of two texts, and the severity of their difference."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any

TIERS = (("identical", 1.0), ("minor", 0.8), ("moderate", 0.5), ("severe", 0.0))
_LONG = 2000  # characters above which words are matched instead
_MAX_WORDS = 50_000
# Words and separators; in scripts without spaces every character is a word.
_WORDS = re.compile(r"[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+|.", re.DOTALL)


def similarity(a: str, b: str) -> float:
    """From 0 to 1: twice the matching characters divided by all characters. Shared prefixes and suffixes match as a whole;
    the middle is matched by difflib or, where it is long, word by word by rapidfuzz."""
    if a == b:
        return 1.0
    start = common_start(a, b)
    tail = common_start(a[start:][::-1], b[start:][::-1])
    middle_a, middle_b = a[start : len(a) - tail], b[start : len(b) - tail]
    return 2 * (start + tail + _matching(middle_a, middle_b)) / (len(a) + len(b))


def common_start(a: Sequence[Any], b: Sequence[Any]) -> int:
    """The length of the shared prefix of two sequences."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((index for index, (item, other) in pairs if item != other), min(len(a), len(b)))


def _matching(a: str, b: str) -> int:
    """Characters that match in order."""
    if max(len(a), len(b)) <= _LONG:
        return sum(block.size for block in difflib.SequenceMatcher(None, a, b, autojunk=False).get_matching_blocks())
    from rapidfuzz.distance import LCSseq

    words, others = _WORDS.findall(a), _WORDS.findall(b)
    if max(len(words), len(others)) > _MAX_WORDS:  # matching blocks need too much memory; their total length does not
        return round(LCSseq.normalized_similarity(words, others) * max(len(a), len(b)))
    blocks = LCSseq.opcodes(words, others).as_matching_blocks()
    return sum(len(word) for block in blocks for word in words[block.a : block.a + block.size])


def severity(value: float) -> str:
    """The tier of a similarity: identical, minor (at least 0.8), moderate (at least 0.5) or severe."""
    return next(name for name, lowest in TIERS if value >= lowest)
