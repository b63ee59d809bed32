"""Attention over tries and slots, and elementwise work of a forward pass, in one kernel each, for half precision on CUDA:
several kernels of torch move the same values through memory three to five times.

Everything works without Triton, which comes with torch for CUDA. `available` says whether it is there, `can_attend`
whether the kernels of attention suit a model's heads.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any

from mill.models.prefix.paths import is_rounded_once
from mill.models.prefix.trie import Segment
from mill.models.tokens.scores import on_device

if TYPE_CHECKING:
    import torch


MOST_ROWS = 64  # of a program: each query head of a token is one


@dataclass(frozen=True)
class BlockTable:
    """`blocks` has a row for each: its first token, the token after its last one, where the segment of the first token
    starts, its first ancestor and how many it has. `ancestors` are (first key, number of keys). `starts` is for each token
    where its segment starts. A block has at most `tokens`.

    Keys are those of the pack, then those of `cached` segments."""

    tokens: int
    blocks: torch.Tensor
    ancestors: torch.Tensor
    starts: torch.Tensor
    cached: list[Segment]


def block_table(segments: Sequence[Segment], group: int, device: Any) -> BlockTable:
    """The table of a pack of these segments, for a model where `group` query heads share a head of keys."""
    import torch

    tokens = max(1, MOST_ROWS // group)
    ends = list(accumulate(len(segment.tokens) for segment in segments))
    where = {segment: (end - len(segment.tokens), end) for segment, end in zip(segments, ends, strict=True)}
    end = ends[-1]
    cached: list[Segment] = []
    blocks: list[tuple[int, int, int, int]] = []
    ancestors: list[tuple[int, int]] = []
    bounds = torch.tensor(list(where.values()))
    starts = bounds[:, 0].repeat_interleave(bounds[:, 1] - bounds[:, 0])
    for parent, found in groupby(segments, key=lambda segment: segment.parent):
        children = list(found)
        path = [segment for segment in (parent.chain if parent is not None else []) if segment.tokens]
        for segment in path:
            if segment not in where:
                where[segment] = (end, end + len(segment.tokens))
                end += len(segment.tokens)
                cached.append(segment)
        first, last = where[children[0]][0], where[children[-1]][1]
        for start in range(first, last, tokens):
            blocks.append((start, min(last, start + tokens), len(ancestors), len(path)))
        ancestors += [(where[segment][0], len(segment.tokens)) for segment in path]
    rows = torch.tensor(blocks)
    rows = torch.cat([rows[:, :2], starts[rows[:, :1]], rows[:, 2:]], dim=1)
    of_blocks, of_ancestors, of_tokens = (
        on_device(table.to(torch.int32), device) for table in (rows, torch.tensor(ancestors or [(0, 0)]), starts)
    )
    return BlockTable(tokens, of_blocks, of_ancestors, of_tokens, cached)


ROWS = 16  # of heads, in one program
MOST_AT_ONCE = 16  # values of half precision in one read
COLUMNS = 1024
LEAST_OF_PRODUCT = 16  # rows and columns of the matrices that Triton multiplies
KEY_BLOCKS = ((64, 3), (64, 2), (32, 3), (32, 2), (32, 1))  # keys of a block and blocks in shared memory, fastest first
LEAST_SHARED_MEMORY = 99 * 1024  # of devices that have torch's flash kernel
TREE, SLOTS = "attend_tree", "attend_slots"  # kernels of attention
PREFIX, OWN = 40, 30  # tokens of rows on which a kernel is compared with torch
NO_WORSE = 2  # times the error of torch's own kernel


@functools.cache
def available() -> bool:
    """Whether Triton compiles for the CUDA device."""
    import torch

    if not torch.cuda.is_available():
        return False
    try:
        kernels()
        both = torch.randn((2, 64, COLUMNS), device="cuda", dtype=torch.bfloat16)
        gate, up = both.float()
        return is_rounded_once(gated(both[0], both[1]), torch.nn.functional.silu(gate) * up)
    except Exception:  # no compiler on this machine, or a version that does not fit: torch's kernels do the same
        return False


def compile_kernels(config: Mapping[str, Any], dtype: str, device: str, *, decodes: bool) -> None:
    """Compile for the heads that a config.json names: the kernel of decoding where texts are generated first (`decodes`),
    else where it is used. What fails here is compiled where it is used, too."""
    import torch

    with contextlib.suppress(Exception), torch.cuda.device(device):
        config = config.get("text_config") or config
        heads, size = config["num_attention_heads"], head_size(config)
        groups = config.get("num_key_value_heads") or heads
        keys = torch.zeros((2, groups, size), device=device, dtype=getattr(torch, dtype))
        if available():
            gated(keys, keys)
            angles, heads_first = keys[None, :, 0].contiguous(), keys.transpose(0, 1)[None]
            rotated(heads_first, heads_first, angles, angles)
            for kernel in (TREE, SLOTS) if decodes else (TREE,):
                _can_attend(kernel, heads, groups, size, keys.dtype, keys.device)


def head_size(config: Mapping[str, Any]) -> int:
    """By the config of a language model."""
    size: int = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return size


def can_attend(kernel: str, q: torch.Tensor, k: torch.Tensor) -> bool:
    """Whether a kernel of attention, TREE or SLOTS, compiles for such queries and keys, (heads, tokens, size), and agrees
    with torch."""
    return available() and _can_attend(kernel, q.shape[0], k.shape[0], q.shape[2], q.dtype, q.device)


@functools.cache
def _can_attend(kernel: str, heads: int, groups: int, size: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Tried once: heads may need more shared memory than the device has."""
    try:
        return agrees_with_torch(kernel, heads, groups, size, dtype, device)
    except Exception:  # torch's kernels do the same
        return False


def agrees_with_torch(kernel: str, heads: int, groups: int, size: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether a kernel is as near to attention in float64 as torch's own kernel: TREE for all tokens of two rows that share
    a prefix, SLOTS for the last token of one."""
    import torch

    scale, group, tokens = size**-0.5, heads // groups, PREFIX + 2 * OWN
    first = Segment(range(PREFIX), 0)
    rows = [Segment(range(OWN), PREFIX, first, 1) for _ in range(2)]
    draw = torch.Generator(device).manual_seed(0)
    both = torch.randn((tokens, heads + 2 * groups, size), device=device, generator=draw).to(dtype)
    q, k, v = (one.contiguous() for one in both.split([heads, groups, groups], dim=1))
    seen = torch.ones(tokens, tokens, device=device, dtype=torch.bool).tril()
    seen[PREFIX + OWN :, PREFIX : PREFIX + OWN] = False

    def attention(*parts: torch.Tensor) -> torch.Tensor:
        one, *others = (part.transpose(0, 1)[None] for part in parts)
        keys, values = (other.repeat_interleave(group, dim=1) for other in others)
        out = torch.nn.functional.scaled_dot_product_attention(one, keys, values, attn_mask=seen, scale=scale)
        return out[0].transpose(0, 1).double()

    exact, own = attention(q.double(), k.double(), v.double()), attention(q, k, v)
    if kernel == TREE:
        found = attend_tree(q, k, v, block_table([first, *rows], group, device), scale)
    else:
        last = PREFIX + OWN - 1
        start, length = torch.tensor([0], device=device), torch.tensor([last + 1], device=device)
        key, value = (one[last : last + 1].transpose(0, 1) for one in (k, v))
        found = attend_slots(q[last : last + 1], key, value, k.clone(), v.clone(), start, length, scale)
        exact, own = exact[last : last + 1], own[last : last + 1]
    return bool((found - exact).norm() <= NO_WORSE * (own - exact).norm())


def rotated(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary position embeddings of queries and keys of (1, heads, tokens, size), whose halves are rotated against each
    other; `cos` and `sin` are (1, tokens, size)."""
    import torch

    tokens, size = q.shape[2:]
    outs = [torch.empty((tokens, one.shape[1], size), device=one.device, dtype=one.dtype) for one in (q, k)]
    heads = [one.shape[1] for one in (q, k)]
    grid = (sum((tokens * count + ROWS - 1) // ROWS for count in heads),)
    strides = [stride for one in (q, k) for stride in one.stride()[1:3]]
    kernels().rotate[grid](
        q, k, cos, sin, *outs, tokens, *heads, *strides, size // 2,
        STEP=math.gcd(*strides, MOST_AT_ONCE), ROWS=ROWS, HALF=_power(size // 2),
    )  # fmt: skip
    queries, keys = (out.transpose(0, 1)[None] for out in outs)
    return queries, keys


def attend_slots(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    starts: torch.Tensor,
    lengths: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Attention of one token of each sequence, (sequences, heads, size), over its slot: so many keys and values from its
    start on, of (tokens, heads of keys, size). Its own key and value, (heads of keys, sequences, size), are the last ones
    and are written into the slot. Keys are read once for all query heads that share them."""
    import torch

    count, heads, size = q.shape
    groups = keys.shape[1]
    k, v = (one if one.stride(2) == 1 else one.contiguous() for one in (k, v))
    out = torch.empty_like(q)
    group = heads // groups
    rows = max(LEAST_OF_PRODUCT, _power(group))
    block, stages = _key_blocks(rows, size, q)
    kernels().attend_slots[(count, groups)](
        q, k, v, keys, values, starts, lengths, out, scale, groups, *k.stride()[:2], *v.stride()[:2], size,
        GROUP=group, ROWS=rows, SIZE=_width(size), BLOCK=block, num_warps=4, num_stages=stages,
    )  # fmt: skip
    return out


def attend_tree(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, table: BlockTable, scale: float) -> torch.Tensor:
    """Attention over a trie: queries of (tokens, heads, size) over keys and values of (tokens, heads of keys, size), the
    first of which are those of the same tokens."""
    import torch

    _, heads, size = q.shape
    groups = keys.shape[1]
    group = heads // groups
    rows = _power(table.tokens * group)
    block, stages = _key_blocks(rows, size, q)
    out = torch.empty_like(q)
    kernels().attend_tree[(table.blocks.shape[0], groups)](
        q, keys, values, out, table.blocks, table.ancestors, table.starts, scale, groups, size,
        TOKENS=table.tokens, GROUP=group, ROWS=rows, SIZE=_width(size), BLOCK=block, num_warps=4, num_stages=stages,
    )  # fmt: skip
    return out


def gated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up, both contiguous."""
    import torch

    out = torch.empty_like(gate)
    count = gate.numel()
    kernels().gate[((count + COLUMNS - 1) // COLUMNS,)](gate, up, out, count, SIZE=COLUMNS)
    return out


def _key_blocks(rows: int, size: int, q: torch.Tensor) -> tuple[int, int]:
    """The fastest blocks that, with this many rows of queries, have room in the shared memory of the device."""
    row = _width(size) * q.element_size()
    room = _shared_memory(q.device)
    return next((blocks for blocks in KEY_BLOCKS if (rows + 2 * math.prod(blocks)) * row <= room), KEY_BLOCKS[-1])


@functools.cache
def _shared_memory(device: torch.device) -> int:
    """Bytes that one program may use."""
    import torch

    properties = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return getattr(properties, "shared_memory_per_block_optin", LEAST_SHARED_MEMORY)


def _width(size: int) -> int:
    """The columns of a head in a product."""
    return max(LEAST_OF_PRODUCT, _power(size))


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length()


def kernels() -> Any:
    """The module of the kernels. It imports Triton, which is only on machines with CUDA."""
    from mill.models.prefix import triton_kernels

    return triton_kernels
