"""Few-shot examples: the first of their split, or a draw that depends on the seed and the sample alone."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from typing import Any

from mill.api.errors import DataError
from mill.api.task import RenderSettings, Sample

Doc = Mapping[str, Any]


def shots_from(
    pool: Sequence[Doc], count: int, sample: Sample, settings: RenderSettings, *, fixed: bool, task: str, where: str
) -> list[Doc]:
    """The `count` examples before a sample's question: drawn for it, or where they are `fixed` the same for all. `where` is
    the pool's name, for the message about too few."""
    if fixed or settings.same_shots:
        shots = first_shots(pool, count, sample.doc)
    else:
        shots = drawn_shots(pool, count, sample.doc, sample_id=sample.id, seed=settings.seed or 0)
    if len(shots) < count:
        found = f"{where} has only {len(shots)}"
        raise DataError(f"{task} needs {count} examples before each question, but {found}: lower --n_shots")
    return shots


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
