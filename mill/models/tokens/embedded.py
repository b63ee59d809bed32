"""The start of an input as embeddings: what the encoders of images, video and audio put in front of text tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class EmbeddedPrefix:
    """An input up to the end of its last image, video or audio clip.

    `keys` stand for its tokens as token ids do: equal keys are equal embeddings at equal positions. `positions` has a row
    for each axis on which the model counts them, one for most models; `shift` is the position of a later text token minus
    its index, since an image takes fewer positions than tokens in some models. `added` are what some models add to the
    hidden states after each of their first layers, in the shape of the embeddings.
    """

    keys: list[int]
    embeddings: torch.Tensor
    positions: torch.Tensor
    shift: int = 0
    added: tuple[torch.Tensor, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(states.nbytes for states in (self.embeddings, *self.added))

    @property
    def length(self) -> int:
        return len(self.keys)

    def keys_of(self, ids: list[int]) -> list[int]:
        """The keys of an input that begins with this prefix."""
        return [*self.keys, *ids[self.length :]]

    def positions_of(self, start: int, end: int) -> torch.Tensor:
        """The positions of tokens [start, end) of an input that begins with this prefix."""
        import torch

        after = torch.arange(max(start, self.length), max(end, self.length)) + self.shift
        return torch.cat([self.positions[:, start:end], after.expand(len(self.positions), -1)], dim=1)
