"""What is computed once: rows of tokens as a trie, whose segments are shared by all rows with that prefix.

A segment is computed once for any number of rows. Sharing a few tokens costs more than it saves, since every level of the
trie is one more attention call, so only long enough segments are split off; the rest is computed for each row.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from mill.models.tokens.rows import EmbeddedPrefix

LEAST_LENGTH = 8  # tokens of a shared segment
LEAST_GAIN = 32  # tokens that sharing it must save
MOST_LEVELS = 6


@dataclass(eq=False)
class Segment:
    """Tokens that follow those of the `parent`, the first of them at position `start` of its rows."""

    tokens: Sequence[int]
    start: int
    parent: Segment | None = None
    level: int = 0
    prefix: EmbeddedPrefix | None = None
    """Where rows through it begin with media: the embeddings of its first tokens, or of those before it."""

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)

    @property
    def chain(self) -> list[Segment]:
        """The segments from the root to this one."""
        return [*(self.parent.chain if self.parent is not None else ()), self]


@dataclass
class Trie:
    """Segments in preorder: parents before children, all descendants of a segment contiguous; for each row its last
    segment."""

    segments: list[Segment]
    ends: list[Segment]

    @property
    def tokens(self) -> int:
        """How many tokens are computed."""
        return sum(len(segment.tokens) for segment in self.segments)


def make_trie(rows: Sequence[Sequence[int]]) -> Trie:
    """The trie of these rows. A row may end inside another row's path; equal rows share all segments."""
    keys = [array("I", row).tobytes() for row in rows]  # sorted by these, rows with a shared prefix are neighbours
    ends: dict[int, Segment] = {}
    segments: list[Segment] = []

    def add(tokens: Sequence[int], parent: Segment | None) -> Segment:
        segment = Segment(tokens, parent.end if parent else 0, parent, parent.level + 1 if parent else 0)
        segments.append(segment)
        return segment

    waiting: list[tuple[list[int], Segment | None]] = []
    if rows:
        waiting.append((sorted(range(len(rows)), key=keys.__getitem__), None))
    while waiting:
        group, parent = waiting.pop()
        depth, first = parent.end if parent else 0, rows[group[0]]
        common = _common(keys[group[0]], keys[group[-1]])  # what the first and the last share, all share
        branches = _branches(rows, group, common)
        if len(branches) == 1:  # all equal
            last = add(first[depth:], parent) if parent is None or common > depth else parent
            ends.update(dict.fromkeys(group, last))
            continue
        shared = common - depth
        saves = shared >= LEAST_LENGTH and shared * (len(branches) - 1) >= LEAST_GAIN
        if saves and (parent is None or parent.level + 2 < MOST_LEVELS):
            parent = add(first[depth:common], parent)
        waiting += [(branch, parent) for branch in reversed(branches)]
    return Trie(segments, [ends[index] for index in range(len(rows))])


def _branches(rows: Sequence[Sequence[int]], group: list[int], common: int) -> list[list[int]]:
    """The group split by the token after the shared prefix; rows that end there come first."""
    branches: dict[int, list[int]] = {}
    for index in group:
        row = rows[index]
        branches.setdefault(row[common] if len(row) > common else -1, []).append(index)
    return list(branches.values())


def _common(one: bytes, other: bytes) -> int:
    """How many leading tokens are equal."""
    low, high = 0, min(len(one), len(other)) // 4
    while low < high:
        middle = (low + high + 1) // 2
        if one[: 4 * middle] == other[: 4 * middle]:
            low = middle
        else:
            high = middle - 1
    return low
