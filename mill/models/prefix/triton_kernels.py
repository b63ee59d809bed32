"""The kernels of fused_kernels.py in Triton's language, which knows no types but constexpr. Values are computed in float32
and rounded once."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def merge(
    out,
    lse,
    part,
    part_lse,
    start,
    rows,
    heads,
    tokens,
    part_tokens,
    size,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
):
    """A row is a head of a token."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, SIZE)
    token, head = row // heads, row % heads
    known = row < rows
    cells = known[:, None] & (column < size)[None, :]
    at, at_part = head * tokens + start + token, head * part_tokens + token
    old = tl.load(lse + at, mask=known, other=0.0)
    new = tl.load(part_lse + at_part, mask=known, other=0.0)
    largest = tl.maximum(old, new)
    total = largest + tl.log(tl.exp(old - largest) + tl.exp(new - largest))
    cells_at = (row + start * heads)[:, None] * size + column[None, :]
    first = tl.load(out + cells_at, mask=cells, other=0.0).to(tl.float32)
    second = tl.load(part + row[:, None] * size + column[None, :], mask=cells, other=0.0).to(tl.float32)
    mixed = first * tl.exp(old - total)[:, None] + second * tl.exp(new - total)[:, None]
    tl.store(out + cells_at, mixed.to(out.dtype.element_ty), mask=cells)
    tl.store(lse + at, total, mask=known)


@triton.jit
def rotate(
    x,
    cos,
    sin,
    out,
    rows,
    heads,
    by_head,
    by_token,
    half,
    ROWS: tl.constexpr,
    HALF: tl.constexpr,
):
    """A row is a head of a token; its two halves are one complex number for each column."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, HALF)
    token, head = row // heads, row % heads
    cells = (row < rows)[:, None] & (column < half)[None, :]
    source = (token * by_token + head * by_head)[:, None] + column[None, :]
    angle = (token * 2 * half)[:, None] + column[None, :]
    first = tl.load(x + source, mask=cells, other=0.0).to(tl.float32)
    second = tl.load(x + source + half, mask=cells, other=0.0).to(tl.float32)
    cos1 = tl.load(cos + angle, mask=cells, other=0.0).to(tl.float32)
    cos2 = tl.load(cos + angle + half, mask=cells, other=0.0).to(tl.float32)
    sin1 = tl.load(sin + angle, mask=cells, other=0.0).to(tl.float32)
    sin2 = tl.load(sin + angle + half, mask=cells, other=0.0).to(tl.float32)
    target = (row * 2 * half)[:, None] + column[None, :]
    tl.store(out + target, (first * cos1 - second * sin1).to(out.dtype.element_ty), mask=cells)
    tl.store(out + target + half, (second * cos2 + first * sin2).to(out.dtype.element_ty), mask=cells)


@triton.jit
def gate(gates, ups, out, count, SIZE: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    known = index < count
    value = tl.load(gates + index, mask=known, other=0.0).to(tl.float32)
    factor = tl.load(ups + index, mask=known, other=0.0).to(tl.float32)
    tl.store(out + index, (value * tl.sigmoid(value) * factor).to(out.dtype.element_ty), mask=known)


@triton.jit
def attend_slots(
    q,
    keys,
    values,
    lengths,
    out,
    scale,
    capacity,
    heads,
    size,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One query of each head of a sequence over the keys in its slot. A program computes the query heads that share a head
    of keys: `heads` is the number of those."""
    slot, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    length = tl.load(lengths + slot)
    row, column = tl.arange(0, ROWS), tl.arange(0, SIZE)
    inside = (row < GROUP)[:, None] & (column < size)[None, :]
    at = ((slot * heads + head) * GROUP + row)[:, None] * size + column[None, :]
    queries = tl.load(q + at, mask=inside, other=0.0)
    first = (slot * capacity * heads + head) * size
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, SIZE), tl.float32)
    for start in range(0, length, BLOCK):
        token = start + tl.arange(0, BLOCK)
        known = token < length
        cells = first + token[:, None] * heads * size + column[None, :]
        mask = known[:, None] & (column < size)[None, :]
        key = tl.load(keys + cells, mask=mask, other=0.0)
        score = tl.dot(queries, tl.trans(key)) * scale
        score = tl.where(known[None, :], score, float("-inf"))
        new = tl.maximum(largest, tl.max(score, 1))
        weight = tl.exp(score - new[:, None])
        kept = tl.exp(largest - new)
        value = tl.load(values + cells, mask=mask, other=0.0)
        total = total * kept + tl.sum(weight, 1)
        mixed = tl.dot(weight.to(value.dtype), value, mixed * kept[:, None])
        largest = new
    tl.store(out + at, (mixed / total[:, None]).to(out.dtype.element_ty), mask=inside)
