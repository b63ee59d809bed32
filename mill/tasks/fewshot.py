"""Few-shot examples: a draw that depends on the seed and the sample alone."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

Doc = Mapping[str, Any]


def first_shots(pool: Sequence[Doc], count: int, doc: Doc) -> list[Doc]:
    """The first `count` examples of the pool that are not the question itself."""
    shots: list[Doc] = []
    for shot in pool:
        if len(shots) == count:
            break
        if shot != doc:
            shots.append(shot)
    return shots


def drawn_shots(pool: Sequence[Doc], count: int, doc: Doc, *, sample_id: str, seed: int) -> list[Doc]:
    """`count` examples drawn without replacement, never the question itself.

    The draw is seeded by (seed, sample id): it is the same in any order, with any limit and in any process.
    """
    digest = hashlib.blake2b(f"{seed}/{sample_id}".encode(), digest_size=8).digest()
    draw = random.Random(int.from_bytes(digest, "big"))
    # One more than needed, since the question itself is skipped; where it has duplicates, more are drawn.
    wanted = min(len(pool), count + 1)
    while True:
        state = draw.getstate()
        shots = [shot for shot in (pool[index] for index in draw.sample(range(len(pool)), wanted)) if shot != doc]
        if len(shots) >= count or wanted == len(pool):
            return shots[:count]
        wanted = min(len(pool), wanted * 2)
        draw.setstate(state)
