"""torch's flash attention kernels with their log-sum-exp, which the public functions do not return."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def cpu_flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float,
    causal: bool = False,
    mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(batch, heads, tokens, size) in; the output and the log-sum-exp of (batch, heads, tokens) out. float32 on a CPU."""
    import torch

    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, lse = flash(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
    return out, lse


@functools.cache
def has_cuda_flash_attention(device: int) -> bool:
    """Whether the kernel below runs on this device: torch is built with it, and the device is Ampere or newer."""
    import torch

    available = getattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)()
    return bool(available) and torch.cuda.get_device_capability(device) >= (8, 0)


def cuda_flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    bounds_q: torch.Tensor,
    bounds_k: torch.Tensor,
    longest_q: int,
    longest_k: int,
    scale: float,
    causal: bool = False,
    used_k: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences of any length, packed: (tokens, heads, size) in; the output and the log-sum-exp of (heads, tokens) out.

    `bounds_q` and `bounds_k` are the cumulative lengths of the sequences in int32, from 0. `used_k` is how many keys of
    each sequence are read. Half precision on CUDA.
    """
    import torch

    flash = torch.ops.aten._flash_attention_forward
    out, lse, *_ = flash(
        q, k, v, bounds_q, bounds_k, longest_q, longest_k, 0.0, causal, False, scale=scale, seqused_k=used_k
    )
    return out, lse
