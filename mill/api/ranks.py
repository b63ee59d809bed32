"""The rank of this process, from the environment that torchrun and accelerate set."""

from __future__ import annotations

import os


def rank() -> int:
    return _number("RANK", 0) if world_size() > 1 else 0


def local_rank() -> int:
    """The rank on this machine, which is the index of its accelerator."""
    return _number("LOCAL_RANK", rank()) if world_size() > 1 else 0


def world_size() -> int:
    """1 without a launcher; WORLD_SIZE without RANK does not count."""
    return max(1, _number("WORLD_SIZE", 1)) if "RANK" in os.environ else 1


def _number(name: str, otherwise: int) -> int:
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return otherwise
