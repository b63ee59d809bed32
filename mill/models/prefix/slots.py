"""The KV cache of sequences in decoding, the attention of one step, and steps as CUDA graphs: a step of a large model takes
longer to launch than to compute."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from mill.api.batching import empty_caches, is_out_of_memory
from mill.compat import cpu_flash_attention, cuda_flash_attention
from mill.models.prefix import fused_kernels
from mill.models.prefix.attention import (
    Pack,
    Partial,
    attending,
    has_cpu_kernel,
    merge,
    partial_attention,
    supports_varlen,
)
from mill.models.prefix.trie import AttentionPlan, Segment
from mill.models.tokens.scores import on_device
from mill.support.terminal import describe, warn

if TYPE_CHECKING:
    import torch


class Slots:
    """Keys and values of sequences in decoding, in one row of `tokens` for every layer, which is allocated when the first
    keys give its shape. A slot is a range of it."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.layers: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._free = [(0, tokens)]

    def take(self, size: int) -> int | None:
        """The first token of a free slot of this size; None where there is none."""
        for index, (start, room) in enumerate(self._free):
            if room >= size:
                self._free[index : index + 1] = [(start + size, room - size)] if room > size else []
                return start
        return None

    def give(self, start: int, size: int) -> None:
        """Return a slot; neighbours become one."""
        ranges: list[tuple[int, int]] = []
        for first, room in sorted([*self._free, (start, size)]):
            if ranges and sum(ranges[-1]) == first:
                ranges[-1] = (ranges[-1][0], ranges[-1][1] + room)
            else:
                ranges.append((first, room))
        self._free = ranges

    def layer(self, call: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(tokens, heads, size) of keys and values; `k` and `v` are (heads, tokens, size)."""
        if call == len(self.layers):
            keys, values = (one.new_zeros(self.tokens, one.shape[0], one.shape[2]) for one in (k, v))
            self.layers.append((keys, values))
        return self.layers[call]

    def put(self, call: int, start: int, parts: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Write keys and values of (heads, tokens, size), one part after another, from a token on."""
        keys, values = self.layers[call]
        for k, v in parts:
            end = start + k.shape[1]
            keys[start:end], values[start:end] = k.transpose(0, 1), v.transpose(0, 1)
            start = end

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy so many tokens to another slot."""
        for layer in self.layers:
            for cache in layer:
                cache[target : target + length] = cache[source : source + length]


@dataclass
class Prefill(Pack):
    """A pack that also fills slots: `rows` are (first token of a slot, the segments whose keys it gets, in order)."""

    slots: Slots | None = None
    rows: Sequence[tuple[int, Sequence[Segment]]] = ()

    def store(self, k: torch.Tensor, v: torch.Tensor) -> None:
        super().store(k, v)
        assert self.slots is not None
        self.slots.layer(self.calls, k, v)
        for start, segments in self.rows:
            self.slots.put(self.calls, start, (self.key_values(segment, k, v) for segment in segments))


@dataclass
class DecodingStep(AttentionPlan):
    """One token of each sequence. `starts` are the first tokens of their slots, `lengths` the tokens in each, the new one
    included. With `capacity` the slots follow each other and have so many tokens each.

    `shared` are segments that sequences see in addition to their slots, each with the indices of those sequences.
    """

    slots: Slots
    starts: torch.Tensor
    lengths: torch.Tensor
    longest: int
    capacity: int | None = None
    window: int = 0
    shared: Sequence[tuple[list[tuple[Any, Any]], torch.Tensor]] = ()
    calls: int = 0
    tensors: dict[str, Any] = field(default_factory=dict)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, softcap: float | None) -> torch.Tensor:
        keys, values = self.slots.layer(self.calls, k, v)
        count = q.shape[1]
        in_one_call = supports_varlen(q, v, softcap) and not self.shared
        if in_one_call and fused_kernels.can_attend(fused_kernels.SLOTS, q, k):
            queries = q.transpose(0, 1).contiguous()
            return fused_kernels.attend_slots(queries, k, v, keys, values, self.starts, self.lengths, scale).transpose(0, 1)
        if "last" not in self.tensors:
            self.tensors["last"] = self.starts + self.lengths - 1
        keys.index_copy_(0, self.tensors["last"], k.transpose(0, 1))
        values.index_copy_(0, self.tensors["last"], v.transpose(0, 1))
        if in_one_call:
            return self._flash(q, keys, values, scale)
        own = self._own(q, self._rows(keys, count), self._rows(values, count), scale, softcap)
        for segment, rows in self.shared:
            merge(own, partial_attention(q[:, rows], *segment[self.calls], scale, causal=False, softcap=softcap), rows)
        return own.out

    def _rows(self, cache: torch.Tensor, count: int) -> torch.Tensor:
        """(sequences, longest, heads, size)."""
        import torch

        if self.capacity is not None:
            return cache.unflatten(0, (-1, self.capacity))[:count, : self.longest]
        if "rows" not in self.tensors:
            rows = self.starts[:, None] + torch.arange(self.longest, device=cache.device)
            self.tensors["rows"] = rows.clamp_(max=self.slots.tokens - 1)
        return cache[self.tensors["rows"]]

    def _own(self, q: Any, keys: Any, values: Any, scale: float, softcap: float | None) -> Partial:
        """Each sequence over its own slot, up to its length. Query heads that share keys are queries of one head."""
        import torch

        heads, count, size = q.shape
        groups = heads // keys.shape[2]
        queries = q.transpose(0, 1).reshape(count, keys.shape[2], groups, size)
        k, v = keys.transpose(1, 2), values.transpose(1, 2)
        if "mask" not in self.tensors:
            empty = torch.arange(self.longest, device=q.device)[None, :] >= self.lengths[:, None]
            mask = torch.zeros(count, 1, 1, self.longest, device=q.device, dtype=torch.float32)
            self.tensors["mask"] = mask.masked_fill_(empty[:, None, None, :], float("-inf"))
        mask = self.tensors["mask"]
        if has_cpu_kernel(q, v, softcap):
            out, lse = cpu_flash_attention(queries, k, v, scale=scale, mask=mask)
        else:
            scores = queries.float() @ k.float().transpose(2, 3) * scale
            if softcap is not None:
                scores = torch.tanh(scores / softcap) * softcap
            scores = scores + mask
            lse = scores.logsumexp(dim=3)
            out = ((scores - lse[..., None]).exp() @ v.float()).to(q.dtype)
        return Partial(out.reshape(count, heads, -1).transpose(0, 1).contiguous(), lse.reshape(count, heads).T.contiguous())

    def _flash(self, q: Any, keys: Any, values: Any, scale: float) -> Any:
        """CUDA's flash kernel reads each slot up to its length. Shapes do not depend on lengths, so a step can be captured
        as a graph."""
        import torch

        heads, count, size = q.shape
        groups = heads // keys.shape[1]
        queries = (
            q.transpose(0, 1).reshape(count, keys.shape[1], groups, size).transpose(1, 2).reshape(-1, keys.shape[1], size)
        )
        if "cu_q" not in self.tensors:
            starts = torch.cat([self.starts, self.starts[-1:]])  # the kernel reads where a sequence starts, then its length
            self.tensors["cu_q"] = torch.arange(count + 1, device=q.device, dtype=torch.int32) * groups
            self.tensors |= {"cu_k": starts.int(), "used": self.lengths.int()}
        bounds = self.tensors
        out, _ = cuda_flash_attention(
            queries,
            keys,
            values,
            bounds_q=bounds["cu_q"],
            bounds_k=bounds["cu_k"],
            longest_q=groups,
            longest_k=self.longest,
            scale=scale,
            used_k=bounds["used"],
        )
        return out.reshape(count, groups, keys.shape[1], size).transpose(1, 2).reshape(count, heads, size).transpose(0, 1)


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
