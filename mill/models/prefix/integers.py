"""Tensors of many whole numbers, made without a Python object for each: while they are made for a pass, the device waits."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

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
