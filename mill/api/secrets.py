"""Keeping keys out of everything that is stored or shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_NAME = r"(?:api_?key|key|token|secret|password|authorization|headers?)"
_SECRET = re.compile(rf"(^|_){_NAME}$", re.IGNORECASE)
_IN_TEXT = re.compile(rf"((?:^|[\[,_\s]){_NAME}=)[^,\]\s]+", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Whether an argument's name says that its value is one."""
    return _SECRET.search(name) is not None


def redact(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as they may be stored and shown."""
    return {name: "***" if is_secret(name) else value for name, value in arguments.items()}


def redact_text(text: str) -> str:
    """A command line without the values of arguments that look like secrets."""
    return _IN_TEXT.sub(r"\1***", text)
