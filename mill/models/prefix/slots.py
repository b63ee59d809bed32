"""The KV cache of sequences in decoding, one slot per sequence, and the attention of one decoding step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mill.compat.torch import cpu_flash_attention, cuda_flash_attention
from mill.models.prefix import fused_kernels
from mill.models.prefix.pack import AttentionPlan
from mill.models.prefix.packed_attention import Pack
from mill.models.prefix.partial_attention import Partial, merge, merge_rows, partial_attention
from mill.models.prefix.trie import Segment
from mill.models.prefix.varlen import supports
from mill.models.tokens.scores import on_device

if TYPE_CHECKING:
    import torch


class Slots:
    """Space for `count` sequences of `capacity` tokens in every layer, allocated when the first keys give the shape."""

    def __init__(self, count: int, capacity: int) -> None:
        self.count, self.capacity = count, capacity
        self.layers: list[tuple[torch.Tensor, torch.Tensor]] = []

    def layer(self, call: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(slots, capacity, heads, size) of keys and values; `k` and `v` are (heads, tokens, size)."""
        if call == len(self.layers):
            keys, values = (one.new_zeros(self.count, self.capacity, one.shape[0], one.shape[2]) for one in (k, v))
            self.layers.append((keys, values))
        return self.layers[call]

    def put(self, call: int, slot: int, parts: Iterable[tuple[torch.Tensor, torch.Tensor]], start: int = 0) -> None:
        """Write keys and values of (heads, tokens, size), one part after another, from a token of a slot on."""
        keys, values = self.layers[call]
        for k, v in parts:
            end = start + k.shape[1]
            keys[slot, start:end], values[slot, start:end] = k.transpose(0, 1), v.transpose(0, 1)
            start = end

    def move(self, sources: Sequence[int], targets: Sequence[int], longest: int) -> None:
        """Copy sequences of at most `longest` tokens to other slots."""
        import torch

        if not sources:
            return
        device = self.layers[0][0].device
        source, target = (on_device(torch.tensor(slots), device) for slots in (sources, targets))
        for layer in self.layers:
            for cache in layer:
                cache[target, :longest] = cache[source, :longest]


@dataclass
class Prefill(Pack):
    """A pack that also fills slots: `rows` are (slot, the segments whose keys it gets, in order)."""

    slots: Slots | None = None
    rows: Sequence[tuple[int, Sequence[Segment]]] = ()

    def store(self, k: torch.Tensor, v: torch.Tensor) -> None:
        super().store(k, v)
        assert self.slots is not None
        layer = self.slots.layer(self.calls, k, v)
        source, target = self._copied(k.device)
        for cache, new in zip(layer, (k, v), strict=True):
            cache.flatten(0, 1).index_copy_(0, target, new.transpose(0, 1)[source])
        for slot, start, segment in self._cached():
            self.slots.put(self.calls, slot, [self.cache[segment][self.calls]], start)

    def _copied(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Which tokens of the pack go to which rows of the slots, all of a layer in one copy."""
        import torch

        if "source" not in self.tensors:
            assert self.slots is not None
            moves = [(*self.bounds[one], slot, start) for slot, start, one in self._segments() if one in self.bounds]
            source = [token for first, last, _, _ in moves for token in range(first, last)]
            starts = [(slot * self.slots.capacity + start, last - first) for first, last, slot, start in moves]
            target = [start + offset for start, count in starts for offset in range(count)]
            for name, values in (("source", source), ("target", target)):
                self.tensors[name] = on_device(torch.tensor(values, dtype=torch.long), device)
        return self.tensors["source"], self.tensors["target"]

    def _cached(self) -> list[tuple[int, int, Segment]]:
        """Segments of earlier packs."""
        return [(slot, start, segment) for slot, start, segment in self._segments() if segment not in self.bounds]

    def _segments(self) -> Iterator[tuple[int, int, Segment]]:
        """(slot, index of the first token in it, segment)."""
        for slot, segments in self.rows:
            start = 0
            for segment in segments:
                yield slot, start, segment
                start += len(segment.tokens)


@dataclass
class DecodingStep(AttentionPlan):
    """One token of each of the first sequences. `lengths` are the tokens in each slot, the new one included.

    `shared` are segments that sequences see in addition to their slots, each with the indices of those sequences, or their
    range.
    """

    slots: Slots
    lengths: torch.Tensor
    longest: int
    window: int = 0
    shared: Sequence[tuple[list[tuple[Any, Any]], torch.Tensor | slice]] = ()
    calls: int = 0
    tensors: dict[str, Any] = field(default_factory=dict)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, softcap: float | None) -> torch.Tensor:
        keys, values = self.slots.layer(self.calls, k, v)
        count = q.shape[1]
        in_one_call = supports(q, v, softcap) and not self.shared
        if in_one_call and fused_kernels.available():
            queries = q.transpose(0, 1).contiguous()
            return fused_kernels.attend_slots(queries, k, v, keys, values, self.lengths, scale).transpose(0, 1)
        flat = self._flat(count, q.device)
        keys.flatten(0, 1).index_copy_(0, flat, k.transpose(0, 1))
        values.flatten(0, 1).index_copy_(0, flat, v.transpose(0, 1))
        if in_one_call:
            return self._flash(q, keys, values, scale)
        own = self._own(q, keys[:count, : self.longest], values[:count, : self.longest], scale, softcap)
        for segment, rows in self.shared:
            seen = partial_attention(q[:, rows], *segment[self.calls], scale, causal=False, softcap=softcap)
            if isinstance(rows, slice):
                merge(own, seen, rows)
            else:
                merge_rows(own, seen, rows)
        return own.out

    def _flat(self, count: int, device: Any) -> torch.Tensor:
        """The indices of the new tokens in a layer whose slots are flattened."""
        import torch

        if "flat" not in self.tensors:
            starts = torch.arange(count, device=device) * self.slots.capacity
            self.tensors["flat"] = starts + self.lengths[:count] - 1
        flat: torch.Tensor = self.tensors["flat"]
        return flat

    def _own(self, q: Any, keys: Any, values: Any, scale: float, softcap: float | None) -> Partial:
        """Each sequence over its own slot, up to its length. Query heads that share keys are queries of one head."""
        import torch

        heads, count, size = q.shape
        groups = heads // keys.shape[2]
        queries = q.transpose(0, 1).reshape(count, keys.shape[2], groups, size)
        k, v = keys.transpose(1, 2), values.transpose(1, 2)
        if "mask" not in self.tensors:
            empty = torch.arange(self.longest, device=q.device)[None, :] >= self.lengths[:count, None]
            mask = torch.zeros(count, 1, 1, self.longest, device=q.device, dtype=torch.float32)
            self.tensors["mask"] = mask.masked_fill_(empty[:, None, None, :], float("-inf"))
        mask = self.tensors["mask"]
        if softcap is None and size == v.shape[-1] and q.device.type == "cpu" and q.dtype == torch.float32:
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
        groups = heads // keys.shape[2]
        queries = (
            q.transpose(0, 1).reshape(count, keys.shape[2], groups, size).transpose(1, 2).reshape(-1, keys.shape[2], size)
        )
        if "cu_q" not in self.tensors:
            every = torch.arange(count + 1, device=q.device, dtype=torch.int32)
            self.tensors |= {"cu_q": every * groups, "cu_k": every * self.slots.capacity, "used": self.lengths[:count].int()}
        bounds = self.tensors
        out, _ = cuda_flash_attention(
            queries,
            keys[:count].flatten(0, 1),
            values[:count].flatten(0, 1),
            bounds_q=bounds["cu_q"],
            bounds_k=bounds["cu_k"],
            longest_q=groups,
            longest_k=self.slots.capacity,
            scale=scale,
            used_k=bounds["used"],
        )
        return out.reshape(count, groups, keys.shape[2], size).transpose(1, 2).reshape(count, heads, size).transpose(0, 1)
