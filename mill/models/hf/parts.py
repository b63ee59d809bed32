"""Parts of an attention: what a query sees of some of its keys, with the log-sum-exp that lets parts be merged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from mill.models.hf.tree import Pack

SCORES_AT_ONCE = 1 << 26  # attention scores held at a time where no fused kernel serves


@dataclass
class Part:
    """`out` is (heads, tokens, size), `lse` (heads, tokens) in float32."""

    out: torch.Tensor
    lse: torch.Tensor


def merge(whole: Part, part: Part, where: Any) -> None:
    """Add what was seen of other keys to these tokens of the whole, in place."""
    import torch

    old, new = whole.lse[:, where], part.lse
    total = torch.logaddexp(old, new)
    mixed = whole.out[:, where].float() * (old - total).exp()[..., None] + part.out.float() * (new - total).exp()[..., None]
    whole.out[:, where] = mixed.to(whole.out.dtype)
    whole.lse[:, where] = total


def partial_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, *, causal: bool, softcap: float | None = None
) -> Part:
    """Queries of (heads, tokens, size) on keys of as many heads or fewer, each serving a group of them."""
    import torch

    if softcap is None and q.shape[-1] == v.shape[-1] and q.device.type == "cpu" and q.dtype == torch.float32:
        return _cpu_attention(q, k, v, scale, causal=causal)
    return _plain_attention(q, k, v, scale, causal=causal, softcap=softcap)


def _cpu_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, *, causal: bool) -> Part:
    """torch's flash kernel for CPUs. Without a mask a group's queries are more queries of one head: no key is copied."""
    import torch

    heads, tokens, size = q.shape
    group = heads // k.shape[0]
    if causal and group > 1:
        k, v = k.repeat_interleave(group, dim=0), v.repeat_interleave(group, dim=0)
    else:
        q = q.reshape(k.shape[0], group * tokens, size)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, lse = flash(q[None], k[None], v[None], 0.0, causal, scale=scale)
    return Part(out[0].reshape(heads, tokens, size), lse[0].reshape(heads, tokens))


def _plain_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, *, causal: bool, softcap: float | None
) -> Part:
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
    return Part(torch.cat(outs, dim=1), torch.cat(lses, dim=1))


def varlen_attention(
    pack: Pack, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, softcap: float | None
) -> torch.Tensor:
    """All segments in one call of CUDA's flash kernel, and all runs of a level in another."""
    import torch

    q, k, v = (one.transpose(0, 1).contiguous() for one in (q, k, v))  # (tokens, heads, size)
    own = _flash(q, k, v, *_bounds(pack, "own", list(pack.places.values()), q.device), scale, causal=True)
    whole = Part(own.out, own.lse)
    for level, runs in enumerate(pack.levels):
        if not runs:
            continue
        found = [pack.key_values(run, k.transpose(0, 1), v.transpose(0, 1)) for run in runs]
        keys = torch.cat([keys.transpose(0, 1) for keys, _ in found])
        values = torch.cat([values.transpose(0, 1) for _, values in found])
        spans = [(run.start, run.end) for run in runs]
        lengths = [one.shape[1] for one, _ in found]
        where = _where(pack, level, spans, q.device)
        queries = q if where is None else q[where]
        cu_q, longest_q = _cumulative(pack, f"q{level}", [end - start for start, end in spans], q.device)
        cu_k, longest_k = _cumulative(pack, f"k{level}", lengths, q.device)
        seen = _flash(queries, keys, values, cu_q, longest_q, cu_k, longest_k, scale, causal=False)
        merge(whole, seen, slice(None) if where is None else where)
    return whole.out


def _flash(
    q: Any, k: Any, v: Any, cu_q: Any, longest_q: int, cu_k: Any, longest_k: int, scale: float, *, causal: bool
) -> Part:
    import torch

    flash = torch.ops.aten._flash_attention_forward
    out, lse, *_ = flash(q, k, v, cu_q, cu_k, longest_q, longest_k, 0.0, causal, False, scale=scale)
    return Part(out.transpose(0, 1), lse.float())


def _bounds(pack: Pack, name: str, spans: list[tuple[int, int]], device: Any) -> tuple[Any, int, Any, int]:
    bounds, longest = _cumulative(pack, name, [end - start for start, end in spans], device)
    return bounds, longest, bounds, longest


def _cumulative(pack: Pack, name: str, lengths: list[int], device: Any) -> tuple[Any, int]:
    """Bounds of pieces of these lengths as the kernel wants them; made once a pack, used in every layer."""
    import torch

    if name not in pack.tensors:
        ends = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
        pack.tensors[name] = (ends.to(device), max(lengths))
    found: tuple[Any, int] = pack.tensors[name]
    return found


def _where(pack: Pack, level: int, spans: list[tuple[int, int]], device: Any) -> Any:
    """The places of these tokens, or None where they are all."""
    import torch

    name = f"where{level}"
    if name not in pack.tensors:
        whole = sum(end - start for start, end in spans) == sum(len(segment.tokens) for segment in pack.segments)
        places = None if whole else torch.cat([torch.arange(start, end) for start, end in spans]).to(device)
        pack.tensors[name] = places
    return pack.tensors[name]
