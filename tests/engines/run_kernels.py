"""Runs Triton's kernels and prints their largest errors, as a share of the largest value, against torch in float64.

On a machine without CUDA Triton's interpreter runs them (TRITON_INTERPRET=1), which has no bfloat16.
"""

from __future__ import annotations

import json
import math

import torch
from torch.nn.functional import silu

from mill.models.prefix import fused_kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = [(5, 3, 16), (33, 8, 64), (7, 4, 80), (20, 2, 128)]  # tokens, heads, size of a head


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).abs().max() / wanted.abs().max())


def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float32).to(DEVICE, dtype)


def gate_error(dtype: torch.dtype) -> float:
    errors = []
    for count in (1, 1023, 5000):
        gate, up = random(count, dtype=dtype), random(count, dtype=dtype)
        errors.append(error(fused_kernels.gated(gate, up), silu(gate.double()) * up.double()))
    return max(errors)


def rotation_error(dtype: torch.dtype) -> float:
    errors = []
    for tokens, heads, size in SHAPES:
        q, k = (random(tokens, count, size, dtype=dtype).transpose(0, 1)[None] for count in (heads, heads + 2))
        angles = torch.arange(tokens)[:, None] * 10_000.0 ** (-torch.arange(size // 2) / (size // 2))
        cos, sin = (torch.cat([one, one], dim=1)[None].to(DEVICE, dtype) for one in (angles.cos(), angles.sin()))
        for x, found in zip((q, k), fused_kernels.rotated(q, k, cos, sin), strict=True):
            first, second = x.double().chunk(2, dim=3)
            turned = torch.cat([-second, first], dim=3)
            errors.append(error(found, x.double() * cos.double()[:, None] + turned * sin.double()[:, None]))
    return max(errors)


def merge_error(dtype: torch.dtype) -> float:
    """Attention over two halves of keys, merged, against attention over all of them."""
    errors = []
    for tokens, heads, size in SHAPES:
        q, k, v = (random(heads, tokens, size, dtype=dtype).double() for _ in range(3))
        start, scores = tokens // 3, q @ k.transpose(1, 2) / math.sqrt(size)
        half = tokens // 2
        parts = [(scores[..., :half], v[:, :half]), (scores[..., half:], v[:, half:])]
        first, second = (
            ((one.softmax(dim=2) @ values).transpose(0, 1).contiguous(), one.logsumexp(dim=2)) for one, values in parts
        )
        out, lse = first[0].to(dtype), first[1].float().contiguous()
        fused_kernels.merge_parts(
            out, lse, second[0][start:].to(dtype).contiguous(), second[1][:, start:].float().contiguous(), start
        )
        wanted = (scores.softmax(dim=2) @ v).transpose(0, 1)
        wanted[:start] = first[0][:start]
        errors.append(error(out, wanted))
        known = scores.logsumexp(dim=2)
        known[:, :start] = first[1][:, :start]
        errors.append(error(lse, known))
    return max(errors)


def slots_error(dtype: torch.dtype) -> float:
    """Attention of one token of each sequence over its slot, where its own key and value are written."""
    errors = []
    for heads, groups, size, capacity in [(8, 2, 64, 200), (32, 8, 128, 300), (4, 4, 80, 70), (14, 2, 64, 130)]:
        lengths = [1, capacity, capacity // 2, 64, 65]
        q = random(len(lengths), heads, size, dtype=dtype)
        k, v = (random(len(lengths) + 2, capacity, groups, size, dtype=dtype) for _ in range(2))
        wanted = torch.empty_like(q, dtype=torch.float64)
        for slot, length in enumerate(lengths):
            keys, values = (one[slot, :length].double().repeat_interleave(heads // groups, dim=1) for one in (k, v))
            weights = torch.einsum("hs,lhs->hl", q[slot].double(), keys).mul(size**-0.5).softmax(dim=1)
            wanted[slot] = torch.einsum("hl,lhs->hs", weights, values)
        last = (torch.arange(len(lengths), device=DEVICE), torch.tensor(lengths, device=DEVICE) - 1)
        filled = (k.clone(), v.clone())
        new_keys, new_values = (one[last].transpose(0, 1) for one in (k, v))
        for one in (k, v):
            one[last] = math.nan
        starts = torch.arange(len(lengths), device=DEVICE) * capacity
        caches = (k.flatten(0, 1), v.flatten(0, 1))
        lengths_there = torch.tensor(lengths, device=DEVICE)
        found = fused_kernels.attend_slots(q, new_keys, new_values, *caches, starts, lengths_there, size**-0.5)
        errors.append(error(found, wanted))
        assert torch.equal(k, filled[0]) and torch.equal(v, filled[1])
    return max(errors)


if __name__ == "__main__":
    torch.manual_seed(0)
    kernels = {"gate": gate_error, "rotation": rotation_error, "merge": merge_error, "slots": slots_error}
    print(json.dumps({name: [check(torch.float32), check(torch.float16)] for name, check in kernels.items()}))
