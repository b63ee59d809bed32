"""Decoding steps as CUDA graphs: a step of a large model takes longer to launch than to compute."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from mill.api.batching import empty_caches, is_out_of_memory
from mill.models.prefix.attention import attending
from mill.models.prefix.slots import DecodingStep, Slots
from mill.models.tokens.scores import on_device
from mill.support.terminal import describe, warn

if TYPE_CHECKING:
    import torch

NO_TOKEN = -1
SMALLEST, BLOCK = 16, 64  # sequences: with fewer than a block, reading the weights takes most of the time


class StepInput(NamedTuple):
    """The next token of a sequence, its position, and its slot: the tokens in it with that one, where it starts, and how
    many it has room for."""

    token: int
    position: int
    length: int
    start: int
    room: int


def graph_size(count: int) -> int:
    """The sequences of the smallest graph for so many."""
    return SMALLEST if count <= SMALLEST else (count + BLOCK - 1) // BLOCK * BLOCK


class StepGraphs:
    """One graph for each size of `graph_size`, captured at first use. If that fails, `failure` says why.

    A graph ends with the argmax of its logits as the inputs of the next step, so that steps can follow each other without
    the host: those of sequences that are complete by then are not read.
    """

    def __init__(self, model: Any, slots: Slots, most: int, longest: int) -> None:
        """For at most `most` sequences in slots of at most `longest` tokens."""
        import torch

        self.model, self.slots, self.most, self.longest = model, slots, most, longest
        self.failure = ""
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        self._pool: Any = None
        self._stream: Any = None  # one for all, as matrix products allocate memory for each
        self._size = 0
        # The graphs read their inputs here, one row for each field of StepInput.
        self._inputs = torch.ones((5, most), dtype=torch.long, device=model.device)
        idle = slots.take(1)
        assert idle is not None
        self._idle = StepInput(0, 0, 1, idle, 1)
        self.tokens = torch.zeros(most, dtype=torch.long, device=model.device)
        """The argmax tokens of the last step; NO_TOKEN where the logits are not finite."""

    def allocate(self) -> None:
        """A step of idle sequences: it compiles what cannot be captured, and allocates the slots of all layers. Between the
        large tensors of a prompt's forward pass they would leave gaps, a quarter of the memory."""
        self.set_inputs([self._idle] * self.most)
        self._forward(self.most)

    def set_inputs(self, inputs: Sequence[StepInput]) -> None:
        """The next token of each sequence. Idle sequences pad the graph; their results are not read."""
        import torch

        self._size = size = min(self.most, graph_size(len(inputs)))
        padded = [*inputs, *[self._idle] * (size - len(inputs))]
        self._inputs[:, :size] = on_device(torch.tensor(padded).T.contiguous(), self._inputs.device)

    def release(self, sequences: Sequence[int]) -> None:
        """The sequences of these indices are complete: the next steps read few tokens of them."""
        import torch

        self._inputs[1:3].index_fill_(1, on_device(torch.tensor(sequences), self._inputs.device), 1)

    def step(self, count: int) -> torch.Tensor:
        """Logits of the tokens after the inputs; their argmax are the next inputs."""
        size = self._size
        if size not in self._graphs:
            empty_caches()  # while it is captured, torch can free nothing
            try:
                self._graphs[size] = self._capture(size)
            except RuntimeError as error:
                if is_out_of_memory(error):
                    raise
                self.failure = describe(error)
                warn(f"decoding steps run without CUDA graphs: {self.failure}")
                return self._forward(size)[:count]
        graph, logits = self._graphs[size]
        graph.replay()
        return logits[:count]

    def capture_ahead(self) -> None:
        """Capture the graph of the current inputs, and those of fewer sequences, as long as the device computes what was
        launched: later it would wait for them."""
        import torch

        launched = torch.cuda.Event()
        launched.record()
        sizes = {min(self.most, graph_size(count)) for count in range(1, self._size + 1)}
        for size in sorted(sizes - self._graphs.keys(), reverse=True):
            if launched.query():
                return
            try:
                self._graphs[size] = self._capture(size)
            except RuntimeError:  # the step that needs it tries again
                return

    def _capture(self, size: int) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        """All graphs use the same memory: the results of one are read before another one runs. The context manager of torch
        would wait for the device and free what the next prompts need."""
        import torch

        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        self._stream = stream = self._stream or torch.cuda.Stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            graph.capture_begin(*([] if self._pool is None else [self._pool]))
            try:
                logits = self._forward(size)
            except BaseException:
                with suppress(RuntimeError):  # which would hide why
                    graph.capture_end()
                raise
            graph.capture_end()
        current.wait_stream(stream)
        self._pool = graph.pool()
        return graph, logits

    def _forward(self, size: int) -> torch.Tensor:
        import torch

        ids, positions, lengths, starts, rooms = self._inputs[:, :size]
        plan = DecodingStep(self.slots, starts, lengths, self.longest)
        with attending(self.model, plan):
            out = self.model(input_ids=ids[None], position_ids=positions[None], use_cache=False)
        logits: torch.Tensor = out.logits[0]
        largest, best = logits.max(dim=-1)  # NaN is the largest, if there is one
        ids.copy_(best)
        self.tokens[:size] = best.where(largest.isfinite(), NO_TOKEN)
        positions += 1
        lengths += 1
        torch.minimum(lengths, rooms, out=lengths)  # one that is complete must not write into the next slot
        return logits
