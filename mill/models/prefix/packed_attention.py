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
from typing import TYPE_CHECKING, Any

from mill.compat.torch import cpu_flash_attention
from mill.models.prefix import varlen
from mill.models.prefix.fused_layers import fused_layers
from mill.models.prefix.pack import AttentionPlan, PackLayout, Unsupported
from mill.models.prefix.partial_attention import Partial, has_cpu_kernel, merge, partial_attention

if TYPE_CHECKING:
    import torch

NAME = "mill_tree"
_IGNORED = {
    *("is_causal", "use_cache", "cache_position", "position_ids", "output_attentions", "sliding_window", "softcap"),
    "logits_to_keep",  # of the language model head, which LLaVA-OneVision passes on to all layers
}


class Pack(PackLayout):
    """A packed row with its attention: one kernel call per level on CUDA, a loop over segments elsewhere."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, softcap: float | None) -> torch.Tensor:
        self.store(k, v)
        if varlen.supports(q, v, softcap):
            return varlen.varlen_attention(self, q, k, v, scale)
        return _looped_attention(self, q, k, v, scale, softcap)


_active = threading.local()


@contextmanager
def attending(model: Any, plan: AttentionPlan, *, fused: bool = True) -> Iterator[None]:
    """Inside this context the model computes its attention by the plan; with `fused`, its other layers by fewer kernels."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, tree_attention)
    before = model.config._attn_implementation
    with fused_layers(model) if fused else nullcontext():  # which may try parts with the model's own attention
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
        for seen in ranges:
            tokens = slice(seen.start, seen.end)
            seen_keys, seen_values = pack.key_values(seen, k, v)
            merge(
                whole, partial_attention(q[:, tokens], seen_keys, seen_values, scale, causal=False, softcap=softcap), tokens
            )
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
