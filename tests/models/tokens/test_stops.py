"""Stop strings, applied one after the other as lm-eval does."""

from __future__ import annotations

import pytest

from mill.models.tokens.reasoning import cut_at_stops


def by_lm_eval(text: str, stops: list[str]) -> str:
    for stop in stops:
        if stop:
            text = text.split(stop)[0]
    return text


@pytest.mark.parametrize(
    ("text", "stops"),
    [
        ("a.\n\nb", [".\n", "\n\n"]),
        ("a.\n\nb", ["\n\n", ".\n"]),
        ("one two three", ["two", "one"]),
        ("one two three", ["four", ""]),
        ("", ["a"]),
        ("x a b\nc", ["b\nc", "a b"]),
    ],
)
def test_the_text_is_cut_as_by_lm_eval(text: str, stops: list[str]) -> None:
    cut, stopped = cut_at_stops(text, stops)
    assert cut == by_lm_eval(text, stops)
    assert stopped == any(stop and stop in text for stop in stops)
