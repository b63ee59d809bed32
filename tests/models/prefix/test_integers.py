"""Tensors of whole numbers against those that torch makes of lists."""

from __future__ import annotations

import random

import torch

from mill.models.prefix.fused_kernels import block_table
from mill.models.prefix.pack import integers, joined_ranges
from mill.models.prefix.trie import Segment


def test_integers_are_those_of_a_list() -> None:
    for values in ([], [5], [0, -3, 2**62], list(range(1000))):
        assert torch.equal(integers(iter(values)), torch.tensor(values, dtype=torch.long))


def test_ranges_follow_each_other() -> None:
    chance = random.Random(0)
    for count in (0, 1, 2, 50):
        firsts = [chance.randrange(100) for _ in range(count)]
        ranges = [(first, first + chance.choice([0, 1, 7])) for first in firsts]
        wanted = [number for first, last in ranges for number in range(first, last)]
        assert joined_ranges(ranges).tolist() == wanted


def test_blocks_have_their_tokens_and_the_start_of_their_segment() -> None:
    root = Segment([0] * 20, 0, None, 0)
    children = [Segment([0] * length, 20, root, 1) for length in (3, 0, 30)]
    table = block_table([root, *children], 4, torch.device("cpu"))
    assert table.tokens == 16
    assert table.blocks.tolist() == [
        [0, 16, 0, 0, 0],
        [16, 20, 0, 0, 0],
        [20, 36, 20, 0, 1],
        [36, 52, 23, 0, 1],
        [52, 53, 23, 0, 1],
    ]
    assert table.ancestors.tolist() == [[0, 20]] and table.blocks.dtype == torch.int32
    assert table.starts.tolist() == [0] * 20 + [20] * 3 + [23] * 30
