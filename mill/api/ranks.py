"""Which of several processes this one is, as torchrun and accelerate tell it."""

from __future__ import annotations

import os


def rank() -> int:
    return _number("RANK", 0) if world_size() > 1 else 0


def local_rank() -> int:
    """Among the processes on this machine: the number of the accelerator that is this one's."""
    return _number("LOCAL_RANK", rank()) if world_size() > 1 else 0


def world_size() -> int:
    """One, unless a launcher said otherwise; a size without a rank says nothing."""
    return max(1, _number("WORLD_SIZE", 1)) if "RANK" in os.environ else 1


def _number(name: str, otherwise: int) -> int:
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return otherwise
