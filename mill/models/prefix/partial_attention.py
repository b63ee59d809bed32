"""Partial attention: the output of queries over some of their keys, with the log-sum-exp that lets parts be merged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mill.compat.torch import cpu_flash_attention

if TYPE_CHECKING:
    import torch

FEW_QUERIES = 64  # of a head, in decoding
SCORES_AT_ONCE = 1 << 26  # attention scores in memory at a time where no fused kernel is used


@dataclass
class Partial:
    """`out` is (heads, tokens, size), `lse` (heads, tokens) in float32."""

    out: torch.Tensor
    lse: torch.Tensor


def merge(whole: Partial, part: Partial, tokens: slice) -> None:
    """Add attention over other keys to these tokens of `whole`, in place."""
    import torch

    old, out = whole.lse[:, tokens], whole.out[:, tokens]
    total = torch.logaddexp(old, part.lse)
    mixed = out * (old - total).exp_()[..., None]  # in float32, as the weights are
    mixed.addcmul_(part.out, (part.lse - total).exp_()[..., None])
    out.copy_(mixed)
    old.copy_(total)


def merge_rows(whole: Partial, part: Partial, tokens: torch.Tensor) -> None:
    """As `merge`, for tokens that are not contiguous."""
    chosen = Partial(whole.out[:, tokens], whole.lse[:, tokens])
    merge(chosen, part, slice(None))
    whole.out[:, tokens], whole.lse[:, tokens] = chosen.out, chosen.lse


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
    if not causal and group * tokens <= FEW_QUERIES:
        return _few_queries(q, k, v, scale, heads, tokens)
    out, lse = cpu_flash_attention(q[None], k[None], v[None], scale=scale, causal=causal)
    return Partial(out[0].reshape(heads, tokens, size), lse[0].reshape(heads, tokens))


def _few_queries(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, heads: int, tokens: int) -> Partial:
    """Two products: the flash kernel gives a thread one head at a time, which leaves threads idle where there are few."""
    import torch

    scores = torch.bmm(q * scale, k.transpose(1, 2))
    largest = scores.amax(dim=2, keepdim=True)
    total = scores.sub_(largest).exp_().sum(dim=2, keepdim=True)
    out = torch.bmm(scores, v).div_(total)
    return Partial(out.view(heads, tokens, -1), total.log_().add_(largest).view(heads, tokens))


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
