"""Elementwise work of a forward pass in one kernel each, for half precision on CUDA: several kernels of torch move the same
values through memory three to five times.

Everything works without Triton, which comes with torch for CUDA; `available` says whether it is there.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

ROWS = 16  # of heads, in one program
COLUMNS = 1024


@functools.cache
def available() -> bool:
    """Whether Triton compiles for the CUDA device."""
    import torch

    if not torch.cuda.is_available():
        return False
    try:
        kernels()
        one = torch.ones((2, 2, 16), device="cuda", dtype=torch.bfloat16)
        gate = gated(one[0].contiguous(), one[1].contiguous())
        return bool(torch.isfinite(gate).all())
    except Exception:  # no compiler on this machine, or a version that does not fit: torch's kernels do the same
        return False


def merge_parts(out: torch.Tensor, lse: torch.Tensor, part: torch.Tensor, part_lse: torch.Tensor, start: int) -> None:
    """Merge attention over other keys into tokens from `start` on, in place: outputs of (tokens, heads, size), all
    contiguous, and log-sum-exps of (heads, tokens) in float32."""
    tokens, heads, size = part.shape
    rows = tokens * heads
    grid = ((rows + ROWS - 1) // ROWS,)
    kernels()["merge"][grid](
        out, lse, part, part_lse, start, rows, heads, lse.shape[1], tokens, size, ROWS=ROWS, SIZE=_power(size)
    )


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary position embedding of (1, heads, tokens, size), whose halves are rotated against each other; `cos` and `sin`
    are (1, tokens, size)."""
    import torch

    _, heads, tokens, size = x.shape
    out = torch.empty((tokens, heads, size), device=x.device, dtype=x.dtype)
    rows = tokens * heads
    grid = ((rows + ROWS - 1) // ROWS,)
    _, by_head, by_token, _ = x.stride()
    kernels()["rotate"][grid](x, cos, sin, out, rows, heads, by_head, by_token, size // 2, ROWS=ROWS, HALF=_power(size // 2))
    return out.transpose(0, 1)[None]


def attend_slots(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, lengths: torch.Tensor, scale: float
) -> torch.Tensor:
    """Attention of one token of each sequence, (sequences, heads, size), over its slot of (slots, capacity, heads of keys,
    size), up to its length. The keys are read once for all query heads that share them."""
    import torch

    count, heads, size = q.shape
    _, capacity, groups, _ = keys.shape
    out = torch.empty_like(q)
    group = heads // groups
    kernels()["attend_slots"][(count, groups)](
        q, keys, values, lengths, out, scale, capacity, groups, size,
        GROUP=group, ROWS=max(16, _power(group)), SIZE=_power(size), BLOCK=64, num_warps=4, num_stages=3,
    )  # fmt: skip
    return out


def gated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, both contiguous."""
    import torch

    out = torch.empty_like(gate)
    count = gate.numel()
    kernels()["gate"][((count + COLUMNS - 1) // COLUMNS,)](gate, up, out, count, SIZE=COLUMNS)
    return out


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length()


@functools.cache
def kernels() -> dict[str, Any]:
    """The compiled functions by name. Triton is imported here, as it is only on machines with CUDA."""
    from mill.models.prefix import triton_kernels

    return {
        "merge": triton_kernels.merge,
        "rotate": triton_kernels.rotate,
        "gate": triton_kernels.gate,
        "attend_slots": triton_kernels.attend_slots,
    }
