"""Segments of a trie packed into one row: where each one starts, and which tokens see which ancestor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any

from mill.models.prefix.trie import Segment

if TYPE_CHECKING:
    import torch


def integers(values: Iterable[int]) -> torch.Tensor:
    """The numbers in a row of 64 bits each. From a list, torch makes it in seven times the time."""
    import torch

    numbers = array("q", values)
    return torch.frombuffer(numbers, dtype=torch.long) if numbers else torch.empty(0, dtype=torch.long)


def joined_ranges(ranges: Sequence[tuple[int, int]]) -> torch.Tensor:
    """The numbers from first to before last of each range, one range after another."""
    import torch

    firsts, lasts = (integers(bounds) for bounds in zip(*ranges, strict=True)) if ranges else (integers(()), integers(()))
    lengths = lasts - firsts
    ends = lengths.cumsum(0)
    return torch.arange(int(lengths.sum())) + (firsts - ends + lengths).repeat_interleave(lengths)


SegmentCache = dict[Segment, list[tuple[Any, Any]]]
"""The KV cache: keys and values of each segment, one pair for each attention call of a forward pass."""


class Unsupported(Exception):
    """The model passes something to its attention that packed attention does not implement."""


class AttentionPlan(ABC):
    """How the attention of one forward pass is computed."""

    window: int = 0
    """The length of the longest row: a layer with a shorter sliding window is not supported."""
    calls: int = 0
    """Attention calls so far in this pass: the index of the layer."""

    @abstractmethod
    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, softcap: float | None) -> torch.Tensor:
        """The output for queries of (heads, tokens, size)."""


@dataclass(frozen=True)
class AncestorRange:
    """Tokens [start, end) of a pack that all see one ancestor: tokens `inside` of this pack, or a cached segment."""

    start: int
    end: int
    ancestor: Segment
    inside: tuple[int, int] | None


@dataclass
class PackLayout(AttentionPlan):
    """Segments that are computed in one pass, and for each level of the trie which of their tokens see which ancestor.

    Segments are ordered by level, so that all tokens that see ancestors of one level are contiguous. `cache` has the keys
    and values of earlier packs; `to_cache` are the segments of this pack that later packs need.
    """

    segments: Sequence[Segment]
    cache: SegmentCache
    to_cache: Sequence[Segment] = ()
    window: int = 0
    bounds: dict[Segment, tuple[int, int]] = field(default_factory=dict)
    levels: list[list[AncestorRange]] = field(default_factory=list)
    tensors: dict[str, Any] = field(default_factory=dict)
    calls: int = 0

    def __post_init__(self) -> None:
        offset = 0
        self.segments = sorted(self.segments, key=lambda segment: segment.level)
        for segment in self.segments:
            self.bounds[segment] = (offset, offset + len(segment.tokens))
            offset += len(segment.tokens)
        paths = [(segment, segment.chain) for segment in self.segments]
        for level in range(max((segment.level for segment in self.segments), default=0)):
            below = [(segment, path[level]) for segment, path in paths if segment.level > level]
            groups = groupby(below, key=lambda pair: pair[1])
            self.levels.append([self._range(ancestor, [segment for segment, _ in group]) for ancestor, group in groups])

    def _range(self, ancestor: Segment, segments: list[Segment]) -> AncestorRange:
        start, end = self.bounds[segments[0]][0], self.bounds[segments[-1]][1]
        return AncestorRange(start, end, ancestor, self.bounds.get(ancestor))

    @property
    def ids(self) -> torch.Tensor:
        return integers(chain.from_iterable(segment.tokens for segment in self.segments))

    @property
    def positions(self) -> torch.Tensor:
        return joined_ranges([(segment.start, segment.end) for segment in self.segments])

    def key_values(self, seen: AncestorRange, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The ancestor's keys and values in the current attention call."""
        if seen.inside is None:
            return self.cache[seen.ancestor][self.calls]
        first, last = seen.inside
        return k[:, first:last], v[:, first:last]

    def store(self, k: torch.Tensor, v: torch.Tensor) -> None:
        """Add the keys and values of this call to the cache."""
        for segment in self.to_cache:
            first, last = self.bounds[segment]
            self.cache.setdefault(segment, []).append((k[:, first:last].clone(), v[:, first:last].clone()))
