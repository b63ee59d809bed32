"""Steps of generation as CUDA graphs: a step of a large model takes longer to launch than to compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mill.api.batching import is_out_of_memory
from mill.models.prefix.packed_attention import attending
from mill.models.prefix.slots import Slots, Step

if TYPE_CHECKING:
    import torch

WARM_UPS = 2


class StepGraphs:
    """One graph for each power of two of rows, recorded when first needed. Where recording fails, `usable` is False."""

    def __init__(self, model: Any, slots: Slots) -> None:
        import torch

        self.model, self.slots = model, slots
        self.usable = True
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, torch.Tensor]] = {}
        # The inputs lie where the graphs read them: token, position and length of each row.
        self._inputs = torch.ones((3, slots.count), dtype=torch.long, device=model.device)

    def step(self, ids: Sequence[int], positions: Sequence[int], lengths: Sequence[int]) -> torch.Tensor:
        """Logits of the next tokens; rows beyond the given ones compute something that nobody reads."""
        import torch

        count = len(ids)
        size = min(self.slots.count, 1 << (count - 1).bit_length())
        idle = size - count
        told = [[*ids, *[0] * idle], [*positions, *[0] * idle], [*lengths, *[1] * idle]]
        self._inputs[:, :size].copy_(torch.tensor(told), non_blocking=True)
        if size not in self._graphs:
            try:
                self._graphs[size] = self._record(size)
            except RuntimeError as error:
                if is_out_of_memory(error):
                    raise
                self.usable = False
                return self._forward(size)[:count]
        graph, logits = self._graphs[size]
        graph.replay()
        return logits[:count]

    def _record(self, size: int) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
        import torch

        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self._forward(size)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = self._forward(size)
        return graph, logits

    def _forward(self, size: int) -> torch.Tensor:
        ids, positions, lengths = self._inputs[:, :size]
        plan = Step(self.slots, lengths, self.slots.capacity)
        with attending(self.model, plan):
            out = self.model(input_ids=ids[None], position_ids=positions[None], use_cache=False)
        found: torch.Tensor = out.logits[0]
        return found
