"""What each program of the kernel for attention over a trie computes: a block of tokens that have the same ancestors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, groupby
from typing import TYPE_CHECKING, Any

from mill.models.prefix.pack import integers
from mill.models.prefix.trie import Segment
from mill.models.tokens.scores import on_device

if TYPE_CHECKING:
    import torch

MOST_ROWS = 64  # of a program: each query head of a token is one


@dataclass(frozen=True)
class BlockTable:
    """`blocks` has a row for each: its first token, the token after its last one, where the segment of the first token
    starts, its first ancestor and how many it has. `ancestors` are (first key, number of keys). `starts` is for each token
    where its segment starts. A block has at most `tokens`.

    Keys are those of the pack, then those of `cached` segments."""

    tokens: int
    blocks: torch.Tensor
    ancestors: torch.Tensor
    starts: torch.Tensor
    cached: list[Segment]


def block_table(segments: Sequence[Segment], group: int, device: Any) -> BlockTable:
    """The table of a pack of these segments, for a model where `group` query heads share a head of keys."""
    import torch

    tokens = max(1, MOST_ROWS // group)
    ends = list(accumulate(len(segment.tokens) for segment in segments))
    where = {segment: (end - len(segment.tokens), end) for segment, end in zip(segments, ends, strict=True)}
    end = ends[-1]
    cached: list[Segment] = []
    blocks: list[tuple[int, int, int, int]] = []
    ancestors: list[tuple[int, int]] = []
    bounds = _table(list(where.values()))
    starts = bounds[:, 0].repeat_interleave(bounds[:, 1] - bounds[:, 0])
    for parent, found in groupby(segments, key=lambda segment: segment.parent):
        children = list(found)
        path = [segment for segment in (parent.chain if parent is not None else []) if segment.tokens]
        for segment in path:
            if segment not in where:
                where[segment] = (end, end + len(segment.tokens))
                end += len(segment.tokens)
                cached.append(segment)
        first, last = where[children[0]][0], where[children[-1]][1]
        for start in range(first, last, tokens):
            blocks.append((start, min(last, start + tokens), len(ancestors), len(path)))
        ancestors += [(where[segment][0], len(segment.tokens)) for segment in path]
    rows = _table(blocks)
    rows = torch.cat([rows[:, :2], starts[rows[:, :1]], rows[:, 2:]], dim=1)
    of_blocks, of_ancestors, of_tokens = (
        on_device(table.to(torch.int32), device) for table in (rows, _table(ancestors or [(0, 0)]), starts)
    )
    return BlockTable(tokens, of_blocks, of_ancestors, of_tokens, cached)


def _table(rows: Sequence[tuple[int, ...]]) -> torch.Tensor:
    return integers(chain.from_iterable(rows)).view(len(rows), -1)
