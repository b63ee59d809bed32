"""Similarity of texts, against difflib on all characters."""

from __future__ import annotations

import difflib
import random

import pytest

from mill.metrics.divergence import severity, similarity


def test_by_hand() -> None:
    assert similarity("", "") == 1.0
    assert similarity("", "a") == 0.0
    assert similarity("abcd", "abxd") == 0.75
    assert similarity("abc", "abc") == 1.0
    assert similarity("abc", "xyz") == 0.0


def test_one_changed_character_costs_that_character() -> None:
    draw = random.Random(1)
    for _ in range(200):
        text = "".join(draw.choice("abc ") for _ in range(draw.randint(1, 3000)))
        index = draw.randrange(len(text))
        assert similarity(text, f"{text[:index]}#{text[index + 1 :]}") == pytest.approx((len(text) - 1) / len(text))


def test_an_inner_part_is_matched_as_difflib_does() -> None:
    one, other = "(the quick brown fox)", "[the slow brown dog]"
    assert similarity(one, other) == difflib.SequenceMatcher(None, one, other, autojunk=False).ratio()


def test_long_texts_with_spaces_are_matched_by_words() -> None:
    words = " ".join(f"word{index}" for index in range(1000))
    assert similarity(f"one {words} end", f"two {words} last") > 0.99


def test_long_texts_without_spaces_are_matched() -> None:
    """Chinese, Japanese and Thai put no spaces between words."""
    text = "".join(chr(0x4E00 + index % 997) for index in range(3000))
    assert similarity(f"\u4e00{text}\u4e01", f"\u4e02{text}\u4e03") > 0.99


def test_a_long_text_whose_ends_differ_is_nearly_identical() -> None:
    """Repeated words are no junk: a text that repeats one sentence is matched like any other."""
    text = "the cat sat on the mat and the dog ran. " * 120
    assert similarity(f"A {text}one", f"B {text}two") == pytest.approx(1 - 4 / len(f"A {text}one"), abs=1e-9)
    dots = "ab. " * 1200
    assert similarity(f"x{dots}y", f"z{dots}w") > 0.999


def test_very_long_texts_are_compared_in_bounded_memory() -> None:
    words = "alpha beta gamma delta " * 20_000
    assert similarity(f"x {words} y", f"z {words} w") > 0.999


@pytest.mark.parametrize(
    ("value", "name"),
    [(1.0, "identical"), (0.99, "minor"), (0.8, "minor"), (0.79, "moderate"), (0.5, "moderate"), (0, "severe")],
)
def test_severity(value: float, name: str) -> None:
    assert severity(value) == name
