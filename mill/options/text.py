"""How the texts of options become values: lists and `key=value` pairs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mill.api.errors import SpecError
from mill.api.files import is_file
from mill.models.spec.open import guess
from mill.models.spec.parse import split_list

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
