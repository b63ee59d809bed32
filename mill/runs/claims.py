"""A claim about a score that a run decides, such as `acc>0.6`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mill.api.errors import SpecError

ALPHA = 0.05
_NUMBER = r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,2})?"
_CLAIM = re.compile(rf"\s*([A-Za-z][\w@.-]{{0,99}}?)\s*(>=|<=|>|<)\s*({_NUMBER})\s*")


@dataclass(frozen=True)
class Claim:
    """The mean of `metric` over the whole test set, compared with a bound. `alpha` is the largest error rate."""

    metric: str
    compare: str
    bound: float
    alpha: float = ALPHA

    @property
    def text(self) -> str:
        return f"{self.metric}{self.compare}{self.bound:g}"


def read_claim(text: str | None, alpha: float = ALPHA) -> Claim | None:
    if text is None:
        return None
    match = _CLAIM.fullmatch(text)
    if match is None:
        raise SpecError(f"{text[:60]!r} is no claim: give METRIC then > >= < or <= then NUMBER, such as acc>0.6")
    return Claim(match[1], match[2], float(match[3]), alpha)
