"""Stop strings, applied by mill as well as by the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def cut_at_stops(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The text before the stop strings, and whether there was one. Servers take few stops, and some ignore them.

    The text is cut at one after the other, as lm-eval does: of two that overlap, the one that is listed first counts.
    """
    stopped = False
    for stop in filter(None, stops):
        text, found, _ = text.partition(stop)
        stopped = stopped or bool(found)
    return text, stopped


def split_stops(tokenizer: Any, until: Sequence[str]) -> tuple[list[str], list[int]]:
    """Stop strings, and the ids of those that are special tokens: decoding removes them from the text."""
    specials = set(tokenizer.all_special_tokens) | set(getattr(tokenizer, "added_tokens_encoder", {}))
    ids = [tokenizer.convert_tokens_to_ids(stop) for stop in until if stop in specials]
    return [stop for stop in until if stop and stop not in specials], ids
