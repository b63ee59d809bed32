"""Runs Triton's kernels and prints their largest errors, as a share of the largest value, against torch in float64.

On a machine without CUDA Triton's interpreter runs them (TRITON_INTERPRET=1), which has no bfloat16. On CUDA they are for
half precision alone: products of float32 would be rounded there.
"""

from __future__ import annotations

import json
import math

import torch
from torch.nn.functional import silu

from mill.models.prefix import attention, fused_kernels
from mill.models.prefix.trie import PackLayout, Segment

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float16, torch.bfloat16 if DEVICE == "cuda" else torch.float32]
SHAPES = [(5, 3, 16), (33, 8, 64), (7, 4, 80), (20, 2, 128)]  # tokens, heads, size of a head
HEADS = [(8, 2, 64), (8, 2, 128), (4, 4, 80), (14, 2, 64), (2, 1, 256), (4, 2, 8)]  # of queries, of keys, their size
FEW_HEADS = [(4, 2, 64), (2, 1, 80), (6, 2, 8), (2, 1, 256)]


def heads_of(dtype: torch.dtype) -> list[tuple[int, int, int]]:
    """All of them on CUDA; the interpreter is slow, and gets few, each in one of the types."""
    return HEADS if DEVICE == "cuda" else FEW_HEADS[DTYPES.index(dtype) :: len(DTYPES)]


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


def tree_error(dtype: torch.dtype) -> float:
    """Attention over a trie with cached segments, and blocks of several segments, against each token over its path."""
    errors = []
    for heads, groups, size in heads_of(dtype):
        cached, empty = Segment([0] * 70, 0), Segment([], 0)
        root, other = Segment([0] * 45, 0), Segment([0] * 3, 0)
        below = Segment([0] * 66, 70, cached, 1)
        children = [Segment([0] * length, 45, root, 1) for length in (5, 40, 1, 90)]
        leaves = [Segment([0] * length, 136, below, 2) for length in (3, 20)] + [Segment([0] * 7, 46, children[2], 2)]
        new = {cached: [tuple(random(groups, 70, size, dtype=dtype) for _ in range(2))], empty: [(None, None)]}
        pack = Tree([root, other, below, *children, *leaves], new)
        tokens = len(pack.ids)
        q, (k, v) = random(heads, tokens, size, dtype=dtype), (random(groups, tokens, size, dtype=dtype) for _ in range(2))
        rows = [one.transpose(0, 1).contiguous() for one in (q, k, v)]
        found = attention.kernel_attention(pack, rows[0], rows[1], rows[2], size**-0.5)
        wanted = torch.empty_like(q, dtype=torch.float64)
        for segment, (first, last) in pack.bounds.items():
            before = [new[one][0] if one in new else pack.part(one, k, v) for one in segment.chain[:-1]]
            own = pack.part(segment, k, v)
            keys, values = (torch.cat([pair[which] for pair in (*before, own)], dim=1).double() for which in (0, 1))
            for token in range(first, last):
                seen = keys.shape[1] - (last - token) + 1
                k_seen, v_seen = (one[:, :seen].repeat_interleave(heads // groups, dim=0) for one in (keys, values))
                weights = (q[:, token, None].double() @ k_seen.transpose(1, 2) * size**-0.5).softmax(dim=2)
                wanted[:, token] = (weights @ v_seen)[:, 0]
        errors.append(error(found, wanted))
    return max(errors)


class Tree(PackLayout):
    def attend(self, *given: object) -> torch.Tensor:
        raise NotImplementedError

    def part(self, segment: Segment, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first, last = self.bounds[segment]
        return k[:, first:last], v[:, first:last]


def slots_error(dtype: torch.dtype) -> float:
    """Attention of one token of each sequence over its slot, where its own key and value are written."""
    errors = []
    for heads, groups, size in heads_of(dtype):
        capacity = 70 + 2 * size
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
        joint = torch.cat([q, v[last]], dim=1)  # as one product computes them
        new_keys, new_values = k[last].transpose(0, 1), joint[:, heads:].transpose(0, 1)
        for one in (k, v):
            one[last] = math.nan
        starts = torch.arange(len(lengths), device=DEVICE) * capacity
        caches = (k.flatten(0, 1), v.flatten(0, 1))
        lengths_there = torch.tensor(lengths, device=DEVICE)
        found = fused_kernels.attend_slots(q, new_keys, new_values, *caches, starts, lengths_there, size**-0.5)
        errors.append(error(found, wanted))
        assert torch.equal(k, filled[0]) and torch.equal(v, filled[1])
        for kernel in (fused_kernels.TREE, fused_kernels.SLOTS):
            assert fused_kernels.agrees_with_torch(kernel, heads, groups, size, dtype, q.device)
    return max(errors)


if __name__ == "__main__":
    torch.manual_seed(0)
    kernels = {"gate": gate_error, "rotation": rotation_error, "tree": tree_error, "slots": slots_error}
    print(json.dumps({name: {str(dtype): check(dtype) for dtype in DTYPES} for name, check in kernels.items()}))
