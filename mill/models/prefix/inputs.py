"""What a model gets for a pack: token ids, or embeddings where rows begin with images, video or audio."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mill.models.prefix.pack import PackLayout
from mill.models.prefix.trie import Segment
from mill.models.tokens.rows import EmbeddedPrefix
from mill.models.tokens.scores import on_device

if TYPE_CHECKING:
    import torch


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
    return {"inputs_embeds": embeddings[None], "position_ids": _by_axis(position_ids)}


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


def _by_axis(positions: torch.Tensor) -> torch.Tensor:
    """Positions of one row as models take them: (1, tokens), or (axes, 1, tokens)."""
    return positions if len(positions) == 1 else positions[:, None]
