"""How far two answers differ: KL divergence of next-token distributions, exact or a lower bound where only top_logprobs are
known, and the similarity of texts."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

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


Known = Mapping[int | str, float]
MIN_REST = 1e-5  # probability of all unknown tokens together, below which float32 is too imprecise


@dataclass(frozen=True)
class Gap:
    """The difference between two engines at one position of a text. `kl` is in nats, of the first engine against the second;
    `exact` is False where it is a lower bound. `first` and `second` are the log-probabilities of the token of the text."""

    kl: float
    first: float
    second: float
    same_top: bool
    exact: bool

    @property
    def delta_p(self) -> float:
        """The change of the token's probability, second engine minus first."""
        return math.exp(min(self.second, 0.0)) - math.exp(min(self.first, 0.0))


def exact_gaps(first: np.ndarray, second: np.ndarray, tokens: Sequence[int]) -> list[Gap]:
    """From log-probabilities of the whole vocabulary, each of shape (positions, vocabulary). NaN stays NaN."""
    import numpy as np

    gaps = []
    for p, q, token in zip(first.astype(np.float64), second.astype(np.float64), tokens, strict=True):
        weight = np.exp(p)
        with np.errstate(invalid="ignore"):
            terms = np.where(weight > 0, weight * (p - q), 0.0)
            if np.isnan(p).any() or np.isnan(q).any():
                terms = np.array([math.nan])
        total = float(terms.sum())
        same = not math.isnan(total) and bool(p.argmax() == q.argmax())  # NaN has no greedy token
        # Rounding may make a KL of 0 negative; NaN stays NaN.
        gaps.append(Gap(0.0 if total < 0 else total, float(p[token]), float(q[token]), same, True))
    return gaps


def bounded_gap(known_first: Known, known_second: Known, token: int | str, first: float, second: float) -> Gap:
    """From the log-probabilities of some tokens on either side.

    Tokens known on both sides count by themselves, all others as one: by the log-sum inequality this is at most the true KL.
    `token` is the token of the text; its log-probabilities `first` and `second` are always known.
    """
    both = {name: (known_first[name], known_second[name]) for name in known_first if name in known_second}
    both[token] = (first, second)
    if any(map(math.isnan, (first, second, *known_first.values(), *known_second.values()))):
        return Gap(math.nan, first, second, False, False)
    total = sum(math.exp(p) * (p - q) for p, q in both.values() if p > -math.inf)
    rest_p = 1 - math.fsum(math.exp(p) for p, _ in both.values())
    rest_q = 1 - math.fsum(math.exp(q) for _, q in both.values())
    if rest_p > 0:
        # The rest of q is a difference of rounded numbers: a larger rest keeps this a lower bound.
        total += rest_p * math.log(rest_p / max(rest_q, MIN_REST))
    same = bool(known_first) and bool(known_second) and _best(known_first) == _best(known_second)
    return Gap(max(0.0, total), first, second, same, False)


def _best(known: Known) -> int | str:
    return max(known, key=lambda name: known[name])
