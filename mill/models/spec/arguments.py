"""Checks of the arguments of server backends, before anything is sent. No message contains a key."""

from __future__ import annotations

import math
from typing import Any
from urllib.parse import urlsplit

from mill.api.errors import SpecError
from mill.support.secrets import redact_address


def check_seconds(name: str, value: Any) -> None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value <= 0:
        raise SpecError(f"{name}={value}: give a number of seconds above 0, such as {name}=120")


def check_whole(name: str, value: Any, *, least: int, most: int | None = None) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < least or (most is not None and value > most):
        limits = f"from {least} to {most}" if most is not None else f"of at least {least}"
        raise SpecError(f"{name}={value}: give a whole number {limits}")


def check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise SpecError(f"{name}={value!r}: give true or false")


def check_text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise SpecError(f"{name}={value!r}: give a string")


def check_key(key: Any, where: str) -> str | None:
    """A key as it is sent in a header: stripped, and refused if it would break the header."""
    if key is None:
        return None
    if not isinstance(key, str):
        raise SpecError(f"{where}: the key must be a string")
    key = key.strip()
    if any(ord(char) < 32 or ord(char) == 127 for char in key):
        raise SpecError(f"{where}: the key contains a line break or another control character; give the key alone")
    if any(ord(char) > 255 for char in key):
        raise SpecError(
            f"{where}: the key contains a character that an HTTP header cannot have; give the key as it was issued"
        )
    return key or None


def check_address(address: Any, name: str = "base_url") -> None:
    check_text(name, address)
    shown = redact_address(address)
    if not address.lower().startswith(("http://", "https://")):
        raise SpecError(f"{name}={shown}: a URL starts with http:// or https://")
    if "," in address:
        raise SpecError(f"{name}={shown}: several addresses are supported by mill eval only")
    if any(ord(char) <= 32 or ord(char) == 127 for char in address):
        raise SpecError(f"{name}={shown!r}: a URL has no spaces and no control characters")
    try:
        url = urlsplit(address)
        valid = url.hostname and (url.port is None or url.port > 0)
    except ValueError:
        hint = "; in a password write %2F for /, %3F for ?, %23 for # and %40 for @" if "@" in address else ""
        raise SpecError(f"{name}={shown}: not a valid URL; write http://host:port{hint}") from None  # ValueError quotes it
    if not valid:
        raise SpecError(f"{name}={shown}: no host; write http://host:port")
