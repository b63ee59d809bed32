"""Stop strings, applied here as well as by the engine."""

from __future__ import annotations

from collections.abc import Sequence


def cut_at_stops(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The text before the first stop string, and whether there was one. Servers take few stops, and some ignore them."""
    places = [place for place in (text.find(stop) for stop in stops if stop) if place >= 0]
    return (text[: min(places)], True) if places else (text, False)
