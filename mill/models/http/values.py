"""Validated values of server responses: bodies by their schema, log-probabilities and token counts by their range."""

from __future__ import annotations

import math
from typing import Any, TypeVar

from mill.api.errors import DataError
from mill.api.response import ROUNDING
from mill.models.http.failures import Failure
from mill.support.validate import convert

T = TypeVar("T")
MAX_TOKENS = 1 << 53


def shaped(data: Any, kind: type[T], what: str) -> T:
    """A server's response as an instance of its schema; a mismatch is a Failure that names the field."""
    try:
        return convert(data, kind, what)
    except DataError as error:
        raise Failure("garbage", str(error)) from error


def log_probability(value: float) -> float:
    """The value, at most 0; minus infinity is valid."""
    if math.isnan(value):
        raise Failure("garbage", "a log-probability of the server's answer is NaN")
    if value > ROUNDING:
        raise Failure("garbage", f"a log-probability of the server's answer is {value:g}, which is above 0")
    return min(value, 0.0)


def log_of(probability: float) -> float:
    """The logarithm of a probability, which must be between 0 and 1."""
    if not 0 <= probability <= math.exp(ROUNDING):
        raise Failure("garbage", f"a probability of the server's answer is {probability:g}")
    return min(0.0, math.log(probability)) if probability > 0 else -math.inf


def token_count(value: Any) -> int | None:
    """A token count; None where the value is not one."""
    return value if type(value) is int and 0 <= value <= MAX_TOKENS else None
