"""KL divergence of two next-token distributions: exact, or a lower bound where only top_logprobs are known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

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
    total = sum(_term(p, q) for p, q in both.values())
    rest_p = 1 - math.fsum(math.exp(p) for p, _ in both.values())
    rest_q = 1 - math.fsum(math.exp(q) for _, q in both.values())
    if rest_p > 0:
        # The rest of q is a difference of rounded numbers: a larger rest keeps this a lower bound.
        total += rest_p * math.log(rest_p / max(rest_q, MIN_REST))
    same = bool(known_first) and bool(known_second) and _best(known_first) == _best(known_second)
    return Gap(max(0.0, total), first, second, same, False)


def _term(p: float, q: float) -> float:
    return math.exp(p) * (p - q) if p > -math.inf else 0.0


def _best(known: Known) -> int | str:
    return max(known, key=lambda name: known[name])
