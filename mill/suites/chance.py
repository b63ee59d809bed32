"""Random draws for `long-context`. The same bytes must come out everywhere, or runs could not be compared: all chance comes
from `Random.random`, the only method whose sequence Python promises to keep."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

from mill.suites.words import FIRST_NAMES, LAST_NAMES

T = TypeVar("T")


class Chance:
    """Draws that are the same on every version of Python."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, end: int) -> int:
        return int(self._random.random() * end)

    def between(self, first: int, last: int) -> int:
        return first + self.below(last - first + 1)

    def pick(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def several(self, items: Sequence[T], count: int) -> list[T]:
        """`count` different items, in the order drawn."""
        left = list(items)
        return [left.pop(self.below(len(left))) for _ in range(count)]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        return self.several(items, len(items))

    def merged(self, ones: Sequence[str], others: Sequence[str]) -> list[str]:
        """All of them, each of the two in its order."""
        indices = set(self.several(range(len(ones) + len(others)), len(others)))
        left, right = iter(ones), iter(others)
        return [next(right if index in indices else left) for index in range(len(ones) + len(others))]

    def codes(self, count: int) -> list[int]:
        """Numbers of four digits, which the filler does not have."""
        return self.several(range(2000, 10000), count)

    def names(self, count: int) -> list[str]:
        return [f"{self.pick(FIRST_NAMES)} {last}" for last in self.several(LAST_NAMES, count)]
