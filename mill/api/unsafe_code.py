"""Code that a model wrote, which scoring may execute: whether the user confirmed it."""

from __future__ import annotations

_confirmed = False


def confirm_unsafe_code() -> None:
    global _confirmed
    _confirmed = True


def unsafe_code_confirmed() -> bool:
    return _confirmed
