"""A cache of texts has a bound in characters and drops what was not used for longest."""

from __future__ import annotations

from mill.models.media.decode import TextCache


class Maker:
    """Makes a text of ten characters for a key, and remembers which keys it made."""

    def __init__(self, cache: TextCache) -> None:
        self.cache = cache
        self.made: list[str] = []

    def get(self, key: str, length: int = 10) -> str:
        def make() -> str:
            self.made.append(key)
            return key * length

        return self.cache.get(key, make)


def test_a_text_is_made_once() -> None:
    maker = Maker(TextCache(100))
    assert [maker.get(key) for key in "abab"] == ["a" * 10, "b" * 10] * 2
    assert maker.made == ["a", "b"]


def test_the_text_that_was_not_used_for_longest_makes_room() -> None:
    maker = Maker(TextCache(20))
    for key in "abacacab":
        maker.get(key)
    assert maker.made == ["a", "b", "c", "b"]


def test_a_text_that_does_not_fit_is_returned_and_not_kept() -> None:
    maker = Maker(TextCache(20))
    assert maker.get("a", 21) == maker.get("a", 21) == "a" * 21
    assert maker.get("b", 20) == maker.get("b", 20)
    assert maker.made == ["a", "a", "b"]


def test_a_failure_is_not_kept() -> None:
    cache = TextCache(20)
    for _ in range(2):
        try:
            cache.get("a", lambda: str(1 / 0))
        except ZeroDivisionError:
            continue
        raise AssertionError
    assert cache.get("a", lambda: "text") == "text"
