"""Attention over a trie on CUDA: sequences of any length in one call of the flash kernel, without padding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mill.compat.torch import cuda_flash_attention, has_cuda_flash_attention
from mill.models.prefix import fused_kernels
from mill.models.prefix.pack import PackLayout
from mill.models.prefix.partial_attention import Partial, merge
from mill.models.prefix.tree_blocks import BlockTable, block_table
from mill.models.tokens.scores import on_device

if TYPE_CHECKING:
    import torch

LARGEST_HEAD = 256


def supports(q: torch.Tensor, v: torch.Tensor, softcap: float | None) -> bool:
    """Whether the kernel takes these: half precision on a CUDA device that has it, no soft cap, heads of a supported
    size."""
    import torch

    size = q.shape[-1]
    fits = softcap is None and size == v.shape[-1] and size <= LARGEST_HEAD and size % 8 == 0
    return (
        fits and q.dtype in (torch.float16, torch.bfloat16) and q.is_cuda and has_cuda_flash_attention(q.device.index or 0)
    )


def varlen_attention(pack: PackLayout, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """One call of a kernel of its own. Without that, one call of the flash kernel for all segments, and one for each level:
    all tokens below it, which are contiguous."""
    import torch

    queries, keys, values = (one.transpose(0, 1).contiguous() for one in (q, k, v))  # (tokens, heads, size)
    if fused_kernels.can_attend(fused_kernels.TREE, q, k):
        return tree_attention(pack, queries, keys, values, scale)
    own = _bounds(pack, "own", [last - first for first, last in pack.bounds.values()], q.device)
    whole = _flash(queries, keys, values, own, own, scale, causal=True)
    for level, ranges in enumerate(pack.levels):
        ancestors = [pack.key_values(seen, k, v) for seen in ranges]
        seen_keys, seen_values = (torch.cat([pair[which].transpose(0, 1) for pair in ancestors]) for which in (0, 1))
        bounds_q = _bounds(pack, f"q{level}", [seen.end - seen.start for seen in ranges], q.device)
        bounds_k = _bounds(pack, f"k{level}", [pair[0].shape[1] for pair in ancestors], q.device)
        below = slice(ranges[0].start, ranges[-1].end)
        merge(whole, _flash(queries[below], seen_keys, seen_values, bounds_q, bounds_k, scale, causal=False), below)
    return whole.out


def tree_attention(pack: PackLayout, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    import torch

    if "blocks" not in pack.tensors:
        pack.tensors["blocks"] = block_table(pack.segments, q.shape[1] // k.shape[1], q.device)
    table: BlockTable = pack.tensors["blocks"]
    if table.cached:
        cached = [pack.cache[segment][pack.calls] for segment in table.cached]
        k, v = (torch.cat([one, *(pair[which].transpose(0, 1) for pair in cached)]) for which, one in enumerate((k, v)))
    return fused_kernels.attend_tree(q, k, v, table, scale).transpose(0, 1)


def _flash(
    q: Any, k: Any, v: Any, bounds_q: tuple[Any, int], bounds_k: tuple[Any, int], scale: float, *, causal: bool
) -> Partial:
    out, lse = cuda_flash_attention(
        q,
        k,
        v,
        bounds_q=bounds_q[0],
        bounds_k=bounds_k[0],
        longest_q=bounds_q[1],
        longest_k=bounds_k[1],
        scale=scale,
        causal=causal,
    )
    return Partial(out.transpose(0, 1), lse.float())


def _bounds(pack: PackLayout, name: str, lengths: list[int], device: Any) -> tuple[Any, int]:
    """The cumulative lengths of sequences, and the longest; computed once a pack, used in every layer."""
    import torch

    if name not in pack.tensors:
        ends = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
        pack.tensors[name] = (on_device(ends, device), max(lengths))
    bounds: tuple[Any, int] = pack.tensors[name]
    return bounds
