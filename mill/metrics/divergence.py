"""How far two distributions over the next token lie apart, exactly or, where only the likeliest are known, at least."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

Known = Mapping[int | str, float]
LEAST_REST = 1e-5  # probability of all unknown tokens together, below which float32 tells nothing


@dataclass(frozen=True)
class Gap:
    """What two engines say of one place of one text. `kl` is in nats, of the first against the second; `exact` is False
    where it is only a lower bound. `first` and `second` are the log-probabilities of the token that stands there."""

    kl: float
    first: float
    second: float
    same_top: bool
    exact: bool

    @property
    def delta_p(self) -> float:
        """How much more probable the second engine finds the token."""
        return math.exp(min(self.second, 0.0)) - math.exp(min(self.first, 0.0))


def exact_gaps(one: np.ndarray, other: np.ndarray, tokens: Sequence[int]) -> list[Gap]:
    """From log-probabilities of the whole vocabulary, (places, vocabulary) each. NaN stays NaN."""
    import numpy as np

    found = []
    for p, q, token in zip(one.astype(np.float64), other.astype(np.float64), tokens, strict=True):
        weight = np.exp(p)
        with np.errstate(invalid="ignore"):
            terms = np.where(weight > 0, weight * (p - q), 0.0)
            if np.isnan(p).any() or np.isnan(q).any():
                terms = np.array([math.nan])
        total = float(terms.sum())
        same = not math.isnan(total) and bool(p.argmax() == q.argmax())  # a NaN has no greedy token to agree with
        # Rounding may take a divergence of nothing below it; NaN stays as it is.
        found.append(Gap(0.0 if total < 0 else total, float(p[token]), float(q[token]), same, True))
    return found


def bounded_gap(one: Known, other: Known, token: int | str, first: float, second: float) -> Gap:
    """From the log-probabilities of some tokens on either side.

    Tokens known on both sides count by themselves, all others as one: by the log-sum inequality that is at most the true
    divergence. `token` is the one that stands there, whose log-probabilities `first` and `second` are known in any case.
    """
    both = {name: (one[name], other[name]) for name in one if name in other}
    both[token] = (first, second)
    if any(map(math.isnan, (first, second, *one.values(), *other.values()))):
        return Gap(math.nan, first, second, False, False)
    total = sum(_term(p, q) for p, q in both.values())
    rest_p = 1 - math.fsum(math.exp(p) for p, _ in both.values())
    rest_q = 1 - math.fsum(math.exp(q) for _, q in both.values())
    if rest_p > 0:
        # What is left of q is a difference of rounded numbers: a larger one keeps the bound a bound.
        total += rest_p * math.log(rest_p / max(rest_q, LEAST_REST))
    same = bool(one) and bool(other) and _best(one) == _best(other)
    return Gap(max(0.0, total), first, second, same, False)


def _term(p: float, q: float) -> float:
    return math.exp(p) * (p - q) if p > -math.inf else 0.0


def _best(known: Known) -> int | str:
    return max(known, key=lambda name: known[name])
