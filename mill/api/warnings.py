"""Things a person should know once, on standard error, without stopping the work."""

from __future__ import annotations

from collections.abc import Callable

from mill.api.printing import echo
from mill.api.secrets import scrub

_said: set[str] = set()
_listeners: list[Callable[[str], object]] = []


def notice(text: str) -> None:
    """Print a note, once for each text."""
    text = scrub(text)
    if text not in _said:
        _said.add(text)
        for listener in _listeners:
            listener(text)
        echo(f"note: {text}", err=True)


def hear(listener: Callable[[str], object]) -> None:
    """Have notes passed on as well: those of a worker, whose standard error nobody reads."""
    _listeners.append(listener)
