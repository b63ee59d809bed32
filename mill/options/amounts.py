"""How the texts of budgets become values: tokens (20M), durations (1h30m), dollars and prices."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from mill.api.budget import Price
from mill.api.errors import SpecError
from mill.options.text import parse_pairs

_NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][0-9]+)?"
_TOKENS = re.compile(rf"({_NUMBER})\s*([kKmMbB]?)")
_PARTS = re.compile(rf"({_NUMBER})\s*([hms])\s*")
_DOLLARS = re.compile(rf"\$?\s*({_NUMBER})")
_MULTIPLES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0}
_FIELDS = {"in": "prompt", "out": "output", "cached": "cached", "reasoning": "reasoning"}
MOST_DOLLARS = 1e6  # for a million tokens


def read_tokens(text: str) -> int:
    """20M, 500k, 1.5B or a plain number."""
    found = _TOKENS.fullmatch(text.strip().replace(",", "").replace("_", ""))
    if found is None:
        raise ValueError(text)
    count = float(found[1]) * _MULTIPLES[found[2].lower()]
    if not math.isfinite(count) or count != int(count):
        raise ValueError(text)
    return int(count)


def read_seconds(text: str) -> float:
    """2h, 90m, 30s, 1h30m or a plain number of seconds."""
    text = text.strip().lower()
    if re.fullmatch(_NUMBER, text):
        return float(text)
    parts = _PARTS.findall(text)
    units = [unit for _, unit in parts]
    if not parts or _PARTS.sub("", text) or units != [unit for unit in _SECONDS if unit in units]:
        raise ValueError(text)
    return sum(float(count) * _SECONDS[unit] for count, unit in parts)


def read_dollars(text: str) -> float:
    """15, 0.50 or $15."""
    found = _DOLLARS.fullmatch(text.strip())
    if found is None:
        raise ValueError(text)
    return float(found[1])


def check_price(given: Mapping[Any, Any]) -> None:
    """Refuse unknown names, values that are no price, and a price of one direction alone."""
    pairs = parse_pairs(given)
    for name, value in pairs.items():
        if name not in _FIELDS:
            raise SpecError(f"{str(name)[:40]!r} has no price: names are {', '.join(_FIELDS)}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MOST_DOLLARS:  # nor NaN
            raise SpecError(f"{name}={str(value)[:40]} is no price in dollars for a million tokens")
    missing = [name for name in ("in", "out") if name not in pairs]
    if missing:
        raise SpecError(f"{missing[0]}= is missing: give both, such as in=0.15,out=0.60 (dollars for a million tokens)")


def make_price(given: Mapping[str, Any]) -> Price | None:
    """The price of an option; None where it is not given."""
    pairs = parse_pairs(given)
    return Price(**{_FIELDS[name]: float(value) for name, value in pairs.items()}) if pairs else None
