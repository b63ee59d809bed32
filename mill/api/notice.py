"""Things a person should know once, on standard error, without stopping the work."""

from __future__ import annotations

import sys

_said: set[str] = set()


def notice(text: str) -> None:
    """Print a note, once for each text."""
    if text not in _said:
        _said.add(text)
        print(f"note: {text}", file=sys.stderr, flush=True)
