"""What is computed once: rows of tokens as a trie, whose segments are shared by all rows with that prefix; and segments
packed into one row, as the model gets them: token ids, or embeddings where rows begin with images, video or audio.

A segment is computed once for any number of rows. Sharing a few tokens costs more than it saves, since every level of the
trie is one more attention call, so only long enough segments are split off; the rest is computed for each row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

from mill.models.tokens.rows import EmbeddedPrefix
from mill.models.tokens.scores import on_device

if TYPE_CHECKING:
    import torch

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


# Segments of a trie packed into one row.


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
    levels: list[list[tuple[slice, Segment]]] = field(default_factory=list)
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
            self.levels.append([(self._range([segment for segment, _ in group]), ancestor) for ancestor, group in groups])

    def _range(self, segments: list[Segment]) -> slice:
        return slice(self.bounds[segments[0]][0], self.bounds[segments[-1]][1])

    @property
    def ids(self) -> torch.Tensor:
        import torch

        return torch.tensor([token for segment in self.segments for token in segment.tokens], dtype=torch.long)

    @property
    def positions(self) -> torch.Tensor:
        import torch

        depths = [depth for segment in self.segments for depth in range(segment.start, segment.end)]
        return torch.tensor(depths, dtype=torch.long)

    def key_values(self, segment: Segment, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values of a segment in the current attention call: in this pack, or cached."""
        if segment not in self.bounds:
            return self.cache[segment][self.calls]
        first, last = self.bounds[segment]
        return k[:, first:last], v[:, first:last]

    def store(self, k: torch.Tensor, v: torch.Tensor) -> None:
        """Add the keys and values of this call to the cache."""
        for segment in self.to_cache:
            keys, values = self.key_values(segment, k, v)
            self.cache.setdefault(segment, []).append((keys.clone(), values.clone()))


def set_prefixes(ends: Sequence[Segment], prefixes: Sequence[EmbeddedPrefix | None]) -> None:
    """Give each segment the embedded prefix of a row through it; those of other rows are equal as far as it reaches."""
    for end, prefix in zip(ends, prefixes, strict=True):
        segment: Segment | None = end if prefix is not None else None
        while segment is not None and segment.prefix is None:
            segment.prefix, segment = prefix, segment.parent


@contextmanager
def model_inputs(model: Any, pack: PackLayout) -> Iterator[dict[str, torch.Tensor]]:
    """Arguments of the model's forward(), as one row. Inside this context its language model also gets what the prefixes add
    to hidden states."""

    if all(segment.prefix is None for segment in pack.segments):
        yield {
            "input_ids": on_device(pack.ids[None], model.device),
            "position_ids": on_device(pack.positions[None], model.device),
        }
        return
    with _adding(model, pack):
        yield _embedded_inputs(model, pack)


def _embedded_inputs(model: Any, pack: PackLayout) -> dict[str, torch.Tensor]:
    import torch

    table, ids = model.get_input_embeddings(), pack.ids
    ids[ids >= len(table.weight)] = 0  # keys, whose embeddings are the prefixes'
    embeddings = table(on_device(ids, model.device)).clone()
    positions = []
    for first, prefix, start, end in _covered(pack):
        embeddings[first : first + end - start] = prefix.embeddings[start:end]
    for segment in pack.segments:
        assert segment.prefix is not None
        positions.append(segment.prefix.positions_of(segment.start, segment.end))
    position_ids = on_device(torch.cat(positions, dim=1), model.device)
    # (1, tokens), or (axes, 1, tokens), as models take them
    by_axis = position_ids if len(position_ids) == 1 else position_ids[:, None]
    return {"inputs_embeds": embeddings[None], "position_ids": by_axis}


def _covered(pack: PackLayout) -> Iterator[tuple[int, EmbeddedPrefix, int, int]]:
    """Where embeddings of prefixes are: the first token in the pack, the prefix, and the range in it."""
    for segment in pack.segments:
        prefix = segment.prefix
        if prefix is not None and segment.start < prefix.length:
            yield pack.bounds[segment][0], prefix, segment.start, min(segment.end, prefix.length)


@contextmanager
def _adding(model: Any, pack: PackLayout) -> Iterator[None]:
    """Models name these arguments after DeepStack, and pass them on only where they have encoded an image themselves."""
    import torch

    covered = list(_covered(pack))
    if not covered or not covered[0][1].added:
        yield
        return
    mask = torch.zeros(1, len(pack.ids), dtype=torch.bool)
    for first, _, start, end in covered:
        mask[0, first : first + end - start] = True
    layers = [
        torch.cat([prefix.added[layer][start:end] for _, prefix, start, end in covered])
        for layer in range(len(covered[0][1].added))
    ]
    added = {"visual_pos_masks": on_device(mask, model.device), "deepstack_visual_embeds": layers}

    def insert(_: Any, positional: tuple[Any, ...], arguments: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return positional, {**arguments, **added}

    hook = model.get_decoder().register_forward_pre_hook(insert, with_kwargs=True)
    try:
        yield
    finally:
        hook.remove()
