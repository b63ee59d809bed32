"""What a model gets for a pack: token ids, or embeddings where rows begin with images, video or audio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mill.models.prefix.pack import PackLayout
from mill.models.prefix.trie import Segment
from mill.models.tokens.embedded import EmbeddedPrefix
from mill.models.tokens.scores import on_device

if TYPE_CHECKING:
    import torch


def set_prefixes(ends: Sequence[Segment], prefixes: Sequence[EmbeddedPrefix | None]) -> None:
    """Give each segment the embedded prefix of a row through it; those of other rows are equal as far as it reaches."""
    for end, prefix in zip(ends, prefixes, strict=True):
        segment: Segment | None = end if prefix is not None else None
        while segment is not None and segment.prefix is None:
            segment.prefix, segment = prefix, segment.parent


def model_inputs(model: Any, pack: PackLayout) -> dict[str, torch.Tensor]:
    """Arguments of the model's forward(), as one row."""
    import torch

    if all(segment.prefix is None for segment in pack.segments):
        return {
            "input_ids": on_device(torch.tensor([pack.ids]), model.device),
            "position_ids": on_device(torch.tensor([pack.positions]), model.device),
        }
    table, ids = model.get_input_embeddings(), torch.tensor(pack.ids)
    ids[ids >= len(table.weight)] = 0  # keys, whose embeddings are the prefixes'
    embeddings = table(on_device(ids, model.device)).clone()
    positions = []
    for segment in pack.segments:
        prefix, (first, _) = segment.prefix, pack.bounds[segment]
        assert prefix is not None
        covered = max(0, min(segment.end, prefix.length) - segment.start)
        if covered:
            embeddings[first : first + covered] = prefix.embeddings[segment.start : segment.start + covered]
        positions.append(prefix.positions_of(segment.start, segment.end))
    position_ids = on_device(torch.cat(positions, dim=1), model.device)
    return {"inputs_embeds": embeddings[None], "position_ids": by_axis(position_ids)}


def by_axis(positions: torch.Tensor) -> torch.Tensor:
    """Positions of one row as models take them: (1, tokens), or (axes, 1, tokens)."""
    return positions if len(positions) == 1 else positions[:, None]
