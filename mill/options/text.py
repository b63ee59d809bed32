"""How the texts of options become values: lists, `key=value` pairs, tokens (20M), durations (1h30m), dollars and prices."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mill.api.budget import Price
from mill.api.errors import SpecError
from mill.models.spec.open import guess
from mill.models.spec.parse import split_list
from mill.support.files import is_file

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


_STOP_STRINGS = ("until", "stop")  # their values stay texts, also where they look like numbers


def split_names(text: str) -> list[str]:
    """A comma-separated text; commas inside brackets belong to a spec, and those in the name of a file to the name.

    Only a file that is given alone may have commas: two names with a comma between could be one name as well.
    """
    return [text] if Path(text).suffix and is_file(text) else split_list(text)


def read_list(text: str) -> list[str]:
    """The same, of at least one name."""
    parts = split_names(text)
    if not parts:
        raise ValueError("an empty list")
    return parts


def parse_pairs(text: str | Mapping[Any, Any]) -> dict[str, Any]:
    """`key=value,key=value` as typed values. Quoted values may contain anything; stop strings may be a list: until=[a,b]."""
    if isinstance(text, Mapping):
        for name in text:
            if not isinstance(name, str):
                raise SpecError(f"{name!r} is not the name of an option")
        return dict(text)
    pairs: dict[str, Any] = {}
    for part in split_list(text):
        name, equals, value = part.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise SpecError(f"{part!r} is not key=value")
        if name in pairs:
            raise SpecError(f"{name} is given twice")
        pairs[name] = _stop_strings(value.strip()) if name in _STOP_STRINGS else _value(value.strip())
    return pairs


def format_pairs(pairs: Mapping[str, Any]) -> str:
    """The inverse of `parse_pairs`."""
    return ",".join(f"{name}={_format(value)}" for name, value in pairs.items())


def _format(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_format, value))}]"
    if not isinstance(value, str):
        return str(value).lower() if isinstance(value, bool) else str(value)
    escaped = re.sub(r"""[\[\],"']""", lambda sign: f"\\x{ord(sign[0]):02x}", value.encode("unicode_escape").decode("ascii"))
    return f'"{escaped}"'


def _stop_strings(text: str) -> str | list[str]:
    parts = split_list(text[1:-1], quoted=True) if text.startswith("[") and text.endswith("]") else [text]
    unquoted = [part for part in parts if _unquoted(part) == part]
    if any(sign in part for part in unquoted for sign in "[]"):
        raise SpecError(
            f"the stop strings {text!r} have brackets that do not match: write until=[a,b], or quote them: until='['"
        )
    return [_unquoted(part) for part in parts] if text.startswith("[") else _unquoted(text)


def _value(text: str) -> Any:
    plain = _unquoted(text)
    return guess(text) if plain == text else plain


def _unquoted(text: str) -> str:
    """A quoted text without its quotes and with its escapes decoded; any other text unchanged."""
    if len(text) < 2 or text[0] not in "\"'" or text[-1] != text[0]:
        return text
    try:
        return text[1:-1].encode().decode("unicode_escape") if text.isascii() else text[1:-1]
    except ValueError as error:
        raise SpecError(f"{text} has an invalid escape") from error
