"""Values in servers' answers: what fits no schema, no log-probability or no count is never taken for one."""

from __future__ import annotations

import math
from typing import Any, TypeVar

from mill.api.errors import DataError
from mill.api.validate import convert
from mill.models.http.failures import Failure

T = TypeVar("T")
ROUNDING = 1e-3  # engines that compute in 16 bits may give a certain token slightly more than 1
MOST_TOKENS = 1 << 53


def shaped(data: Any, kind: type[T], what: str) -> T:
    """A server's answer as an instance of its schema; what does not fit is a Failure that names the field."""
    try:
        return convert(data, kind, what)
    except DataError as error:
        raise Failure("garbage", str(error)) from error


def log_probability(value: float) -> float:
    """At most 0, and minus infinity for what cannot be."""
    if math.isnan(value):
        raise Failure("garbage", "a log-probability of the server's answer is NaN")
    if value > ROUNDING:
        raise Failure("garbage", f"a log-probability of the server's answer is {value:g}, which is above 0")
    return min(value, 0.0)


def log_of(probability: float) -> float:
    """The logarithm of a probability, which is none where it is negative or above 1."""
    if not 0 <= probability <= math.exp(ROUNDING):
        raise Failure("garbage", f"a probability of the server's answer is {probability:g}")
    return min(0.0, math.log(probability)) if probability > 0 else -math.inf


def token_count(value: Any) -> int | None:
    """A count of tokens; None for whatever is none."""
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None
