"""Attention over a trie: many rows in one, where each token sees its own path and nothing else.

The tokens of several segments form a single row without padding. A token attends to the tokens before it in its segment,
and to every segment on its path. The partial results are merged by their log-sum-exp, so the keys of a shared prefix are
read in place and never copied for the rows that share it. This works inside any model that takes its attention function
from transformers' attention interface: mill passes the positions, and the keys are those that the model computed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mill.compat import cpu_flash_attention, cuda_flash_attention, has_cuda_flash_attention
from mill.models.prefix import fused_kernels
from mill.models.prefix.fused_kernels import BlockTable, block_table
from mill.models.prefix.fused_layers import fused_layers
from mill.models.prefix.trie import AttentionPlan, PackLayout, Unsupported
from mill.models.tokens.scores import on_device

if TYPE_CHECKING:
    import torch


SCORES_AT_ONCE = 1 << 26  # attention scores in memory at a time where no fused kernel is used


@dataclass
class Partial:
    """`out` is (heads, tokens, size), `lse` (heads, tokens) in float32."""

    out: torch.Tensor
    lse: torch.Tensor


def merge(whole: Partial, part: Partial, tokens: slice | torch.Tensor) -> None:
    """Add attention over other keys to these tokens of `whole`, in place."""
    import torch

    old = whole.lse[:, tokens]
    total = torch.logaddexp(old, part.lse)
    mixed = whole.out[:, tokens] * (old - total).exp_()[..., None]  # in float32, as the weights are
    mixed.addcmul_(part.out, (part.lse - total).exp_()[..., None])
    whole.out[:, tokens], whole.lse[:, tokens] = mixed.to(whole.out.dtype), total


def partial_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, *, causal: bool, softcap: float | None = None
) -> Partial:
    """Queries of (heads, tokens, size) on keys of as many heads or fewer, each used by a group of query heads."""
    if has_cpu_kernel(q, v, softcap):
        return _cpu_attention(q, k, v, scale, causal=causal)
    return _plain_attention(q, k, v, scale, causal=causal, softcap=softcap)


def has_cpu_kernel(q: torch.Tensor, v: torch.Tensor, softcap: float | None) -> bool:
    """Whether torch's flash kernel for CPUs computes this attention."""
    import torch

    return softcap is None and q.shape[-1] == v.shape[-1] and q.device.type == "cpu" and q.dtype == torch.float32


def _cpu_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, *, causal: bool) -> Partial:
    """torch's flash kernel for CPUs. Without a mask a group's queries are more queries of one head: no key is copied."""
    heads, tokens, size = q.shape
    group = heads // k.shape[0]
    if causal and group > 1:
        k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
    else:
        q = q.reshape(k.shape[0], group * tokens, size)
    out, lse = cpu_flash_attention(q[None], k[None], v[None], scale=scale, causal=causal)
    return Partial(out[0].reshape(heads, tokens, size), lse[0].reshape(heads, tokens))


def _plain_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, *, causal: bool, softcap: float | None
) -> Partial:
    """The definition, in float32 and a block of queries at a time: for any device, head size and soft cap."""
    import torch

    heads, tokens, _ = q.shape
    group = heads // k.shape[0]
    keys = k.float().repeat_interleave(group, dim=0) if group > 1 else k.float()
    values = v.float().repeat_interleave(group, dim=0) if group > 1 else v.float()
    outs, lses = [], []
    block = max(1, SCORES_AT_ONCE // (heads * keys.shape[1]))
    for start in range(0, tokens, block):
        scores = q[:, start : start + block].float() @ keys.transpose(1, 2) * scale
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        if causal:
            rows = torch.arange(start, min(start + block, tokens), device=q.device)
            hidden = torch.arange(keys.shape[1], device=q.device)[None, :] > rows[:, None]
            scores = scores.masked_fill(hidden, float("-inf"))
        lse = scores.logsumexp(dim=2)
        outs.append(((scores - lse[..., None]).exp() @ values).to(q.dtype))
        lses.append(lse)
    return Partial(torch.cat(outs, dim=1), torch.cat(lses, dim=1))


LARGEST_HEAD = 256


def supports_varlen(q: torch.Tensor, v: torch.Tensor, softcap: float | None) -> bool:
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
        return kernel_attention(pack, queries, keys, values, scale)
    own = _bounds(pack, "own", [last - first for first, last in pack.bounds.values()], q.device)
    whole = _flash(queries, keys, values, own, own, scale, causal=True)
    for level, ranges in enumerate(pack.levels):
        ancestors = [pack.key_values(ancestor, k, v) for _, ancestor in ranges]
        seen_keys, seen_values = (torch.cat([pair[which].transpose(0, 1) for pair in ancestors]) for which in (0, 1))
        bounds_q = _bounds(pack, f"q{level}", [tokens.stop - tokens.start for tokens, _ in ranges], q.device)
        bounds_k = _bounds(pack, f"k{level}", [pair[0].shape[1] for pair in ancestors], q.device)
        below = slice(ranges[0][0].start, ranges[-1][0].stop)
        merge(whole, _flash(queries[below], seen_keys, seen_values, bounds_q, bounds_k, scale, causal=False), below)
    return whole.out


def kernel_attention(pack: PackLayout, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
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


NAME = "mill_tree"
_IGNORED = {
    *("is_causal", "use_cache", "cache_position", "position_ids", "output_attentions", "sliding_window", "softcap"),
    "logits_to_keep",  # of the language model head, which LLaVA-OneVision passes on to all layers
}


class Pack(PackLayout):
    """A packed row with its attention: one kernel call per level on CUDA, a loop over segments elsewhere."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, softcap: float | None) -> torch.Tensor:
        self.store(k, v)
        if supports_varlen(q, v, softcap):
            return varlen_attention(self, q, k, v, scale)
        return _looped_attention(self, q, k, v, scale, softcap)


_active = threading.local()


@contextmanager
def attending(model: Any, plan: AttentionPlan, *, fused: bool = True) -> Iterator[None]:
    """Inside this context the model computes its attention by the plan; on CUDA with `fused`, its other layers by fewer
    kernels."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, tree_attention)
    before = model.config._attn_implementation
    # Before the attention is replaced: parts may be tried with the model's own.
    with fused_layers(model) if fused and model.device.type == "cuda" else nullcontext():
        model.set_attn_implementation(NAME)
        _active.plan = plan
        plan.calls = 0
        try:
            yield
        finally:
            _active.plan = None
            model.set_attn_implementation(before)


def tree_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function: (1, heads, tokens, size) in, (1, tokens, heads, size) out."""
    plan: AttentionPlan = _active.plan
    window = options.get("sliding_window")
    if attention_mask is not None or query.shape[0] != 1 or (window is not None and window < plan.window):
        raise Unsupported("its attention takes a mask, or a window shorter than the rows")
    unknown = [name for name, value in options.items() if value is not None and value is not False and name not in _IGNORED]
    if unknown:
        raise Unsupported(f"its attention takes {', '.join(sorted(unknown))}")
    scale = scaling if scaling is not None else float(query.shape[-1]) ** -0.5
    out = plan.attend(query[0], key[0], value[0], scale, options.get("softcap"))
    plan.calls += 1
    return out.transpose(0, 1)[None].contiguous(), None


def _looped_attention(
    pack: PackLayout, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, softcap: float | None
) -> torch.Tensor:
    """One call of the device's attention for the segments of one length, and one for each range of tokens that sees an
    ancestor."""
    group = q.shape[0] // k.shape[0]  # the causal kernel needs a key for every head: copied once, not once a segment
    keys, values = (one.repeat_interleave(group, dim=0) if group > 1 else one for one in (k, v))
    whole = _own_attention(pack, q, keys, values, scale, softcap)
    for ranges in pack.levels:
        for tokens, ancestor in ranges:
            seen = pack.key_values(ancestor, k, v)
            merge(whole, partial_attention(q[:, tokens], *seen, scale, causal=False, softcap=softcap), tokens)
    return whole.out


def _own_attention(
    pack: PackLayout, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, softcap: float | None
) -> Partial:
    """Each segment over itself. The CPU's kernel takes all segments of one length at once: most are short."""
    import torch

    heads, tokens, _ = q.shape
    whole = Partial(q.new_empty(heads, tokens, values.shape[2]), q.new_empty(heads, tokens, dtype=torch.float32))
    together = has_cpu_kernel(q, values, softcap)
    for rows in _equal_lengths(pack) if together else ():
        parts = (one[:, rows].transpose(0, 1) for one in (q, keys, values))  # (segments, heads, tokens, size)
        out, lse = cpu_flash_attention(*parts, scale=scale, causal=True)
        whole.out[:, rows], whole.lse[:, rows] = out.transpose(0, 1), lse.transpose(0, 1)
    for first, last in pack.bounds.values() if not together else ():
        own = slice(first, last)
        part = partial_attention(q[:, own], keys[:, own], values[:, own], scale, causal=True, softcap=softcap)
        whole.out[:, own], whole.lse[:, own] = part.out, part.lse
    return whole


def _equal_lengths(pack: PackLayout) -> list[Any]:
    """The tokens of all segments of one length, as indices of (segments, tokens)."""
    import torch

    if "own" not in pack.tensors:
        starts: dict[int, list[int]] = {}
        for first, last in pack.bounds.values():
            starts.setdefault(last - first, []).append(first)
        pack.tensors["own"] = [
            torch.tensor(firsts)[:, None] + torch.arange(length) for length, firsts in starts.items() if length
        ]
    rows: list[Any] = pack.tensors["own"]
    return rows
