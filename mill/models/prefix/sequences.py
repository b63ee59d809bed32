"""Sequences in decoding: the slot of each in the KV cache."""

from __future__ import annotations

from dataclasses import dataclass, field

from mill.models.prefix.graphs import StepInput
from mill.models.prefix.sampling import Sampler
from mill.models.prefix.trie import Segment
from mill.models.tokens.tokenizer import Prompt


@dataclass(eq=False)
class ActiveSequence:
    """A sequence in decoding. `own` are the segments in its slot, `shared` those it reads from the segment cache. The slot
    starts at the token `start` and has room for `room`."""

    prompt: Prompt
    own: list[Segment]
    shared: list[Segment]
    sampler: Sampler
    generated: list[int] = field(default_factory=list)
    start: int = 0
    room: int = 0
    started: float = 0.0
    seconds: float = 0.0
    complete: bool = False

    @property
    def length(self) -> int:
        """How many tokens are in its slot."""
        return sum(len(segment.tokens) for segment in self.own) + len(self.generated)

    @property
    def index(self) -> int:
        """How many tokens are before the next input token."""
        return len(self.prompt.ids) - 1 + len(self.generated)

    @property
    def position(self) -> int:
        """The position of the next input token."""
        return self.index + self.prompt.shift

    @property
    def input(self) -> StepInput:
        """A complete sequence may fill its slot, and must not write into the next one."""
        last = self.generated[-1] if self.generated else self.prompt.ids[-1]
        return StepInput(last, self.position, min(self.room, self.length + 1), self.start, self.room)

    @property
    def capacity(self) -> int:
        """How many tokens its slot needs."""
        return self.length + self.prompt.max_new_tokens
