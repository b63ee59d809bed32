"""Keeping keys out of everything that is stored or shown."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_NAME = (
    r"(?:(?:\w+[_-])?(?:api[_-]?key|secret|password|authorization)|key|headers|(?:(?:api|auth|access|hf|bearer)[_-])?token)"
)
_WHOLE = re.compile(_NAME, re.IGNORECASE)
_IN_TEXT = re.compile(rf"((?:^|[\[,\s]|--){_NAME}\s*=\s*)(\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^,\]\s]+)", re.IGNORECASE)


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
    return " ".join(shown)
