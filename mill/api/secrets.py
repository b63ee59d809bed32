"""Keeping keys out of everything that is stored or shown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_NAME = (
    r"(?:(?:\w+[_-])?(?:api[_-]?key|secret|password|authorization)|key|headers|(?:(?:api|auth|access|hf|bearer)[_-])?token)"
)
_SHORTEST = 6  # anything shorter would also be taken out of harmless words
_WHOLE = re.compile(_NAME, re.IGNORECASE)
_IN_TEXT = re.compile(rf"((?:^|[\[,\s]|--){_NAME}\s*=\s*)(\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^,\]\s]+)", re.IGNORECASE)


_known: set[str] = set()


def remember(secret: str | None) -> None:
    """A secret's value, so that it is taken out of whatever is shown or stored, such as a server's words about it."""
    if secret and len(secret) >= _SHORTEST:
        _known.add(secret)


def scrub(text: str) -> str:
    """A text without the secrets that are known."""
    for secret in _known:
        text = text.replace(secret, "***")
    return text


def is_secret(name: str) -> bool:
    """Whether an argument's name says that its value is one; `add_bos_token` and `eos_token` do not."""
    return _WHOLE.fullmatch(name) is not None


def redact(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as they may be stored and shown."""
    return {name: "***" if is_secret(name) else value for name, value in arguments.items()}


def redact_command(argv: Sequence[str]) -> str:
    """A command line without the values of arguments and options that look like secrets."""
    shown = []
    for place, word in enumerate(argv):
        after_option = place > 0 and argv[place - 1].startswith("--") and is_secret(argv[place - 1].lstrip("-"))
        shown.append("***" if after_option else _IN_TEXT.sub(r"\1***", word))
    return scrub(" ".join(shown))


def hide(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """A command line whose secrets are names of environment variables, and those variables.

    Everybody on a machine can read the command lines of others, nobody their environment.
    """
    hidden: dict[str, str] = {}

    def put_away(match: re.Match[str]) -> str:
        value = match.group(2)
        if value.startswith("$"):
            return match.group(0)
        name = f"{_HIDDEN}{len(hidden)}"
        hidden[name] = value.strip("\"'")
        return f"{match.group(1)}${name}"

    return [_IN_TEXT.sub(put_away, word) for word in argv], hidden


_HIDDEN = "MILL_SECRET_"
