"""Stop strings, applied here as well as by the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def cut_at_stops(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The text before the first stop string, and whether there was one. Servers take few stops, and some ignore them."""
    places = [place for place in (text.find(stop) for stop in stops if stop) if place >= 0]
    return (text[: min(places)], True) if places else (text, False)


def split_stops(tokenizer: Any, until: Sequence[str]) -> tuple[list[str], list[int]]:
    """Stop strings that are special tokens are compared as ids, since they vanish from decoded text."""
    specials = set(tokenizer.all_special_tokens) | set(getattr(tokenizer, "added_tokens_encoder", {}))
    ids = [tokenizer.convert_tokens_to_ids(stop) for stop in until if stop in specials]
    return [stop for stop in until if stop and stop not in specials], ids
