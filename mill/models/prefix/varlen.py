"""Attention over a trie on CUDA: pieces of any length in one call of the flash kernel, no padding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mill.compat.torch import cuda_flash_attention
from mill.models.prefix.partial_attention import Part, merge

if TYPE_CHECKING:
    import torch

    from mill.models.prefix.packed_attention import Pack

LARGEST_HEAD = 256


def serves(q: torch.Tensor, v: torch.Tensor, softcap: float | None) -> bool:
    """Whether the kernel takes these: half precision on CUDA, no soft cap, keys and values of one size it knows."""
    import torch

    size = q.shape[-1]
    fits = softcap is None and size == v.shape[-1] and size <= LARGEST_HEAD and size % 8 == 0
    return fits and q.is_cuda and q.dtype in (torch.float16, torch.bfloat16)


def varlen_attention(pack: Pack, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """All segments in one call, and for each level all tokens below it in another: they lie behind those above."""
    import torch

    queries, keys, values = (one.transpose(0, 1).contiguous() for one in (q, k, v))  # (tokens, heads, size)
    own = _bounds(pack, "own", [last - first for first, last in pack.places.values()], q.device)
    whole = _flash(queries, keys, values, own, own, scale, causal=True)
    for level, runs in enumerate(pack.levels):
        found = [pack.key_values(run, k, v) for run in runs]
        seen_keys, seen_values = (torch.cat([pair[which].transpose(0, 1) for pair in found]) for which in (0, 1))
        asking = _bounds(pack, f"q{level}", [run.end - run.start for run in runs], q.device)
        asked = _bounds(pack, f"k{level}", [pair[0].shape[1] for pair in found], q.device)
        below = slice(runs[0].start, runs[-1].end)
        merge(whole, _flash(queries[below], seen_keys, seen_values, asking, asked, scale, causal=False), below)
    return whole.out


def _flash(q: Any, k: Any, v: Any, asking: tuple[Any, int], asked: tuple[Any, int], scale: float, *, causal: bool) -> Part:
    out, lse = cuda_flash_attention(
        q, k, v, bounds_q=asking[0], bounds_k=asked[0], longest_q=asking[1], longest_k=asked[1], scale=scale, causal=causal
    )
    return Part(out.transpose(0, 1), lse.float())


def _bounds(pack: Pack, name: str, lengths: list[int], device: Any) -> tuple[Any, int]:
    """Where pieces of these lengths begin and end, and the longest; made once a pack, used in every layer."""
    import torch

    if name not in pack.tensors:
        ends = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
        pack.tensors[name] = (ends.to(device), max(lengths))
    found: tuple[Any, int] = pack.tensors[name]
    return found
