"""The kernels of fused_kernels.py in Triton's language, which knows no types but constexpr. Values are computed in float32
and rounded once.

A kernel is compiled for each value of a constexpr, such as the size of a head, and not for numbers that differ from pass to
pass, unless their alignment matters.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["tokens", "q_heads", "k_heads", "q_by_head", "q_by_token", "k_by_head", "k_by_token"])
def rotate(
    q,
    k,
    cos,
    sin,
    q_out,
    k_out,
    tokens,
    q_heads,
    k_heads,
    q_by_head,
    q_by_token,
    k_by_head,
    k_by_token,
    half: tl.constexpr,
    STEP: tl.constexpr,
    ROWS: tl.constexpr,
    HALF: tl.constexpr,
):
    """Queries in the first programs, keys in the others. The distances of heads and tokens are multiples of STEP, which lets
    several values be read at once."""
    program, of_q = tl.program_id(0), tl.cdiv(tokens * q_heads, ROWS)
    if program < of_q:
        by_head, by_token = tl.multiple_of(q_by_head, STEP), tl.multiple_of(q_by_token, STEP)
        _rotate_rows(program, q, cos, sin, q_out, tokens, q_heads, by_head, by_token, half, ROWS, HALF)
    else:
        by_head, by_token = tl.multiple_of(k_by_head, STEP), tl.multiple_of(k_by_token, STEP)
        _rotate_rows(program - of_q, k, cos, sin, k_out, tokens, k_heads, by_head, by_token, half, ROWS, HALF)


@triton.jit
def _rotate_rows(
    block, x, cos, sin, out, tokens, heads, by_head, by_token, half: tl.constexpr, ROWS: tl.constexpr, HALF: tl.constexpr
):
    """A row is a head of a token; its two halves are one complex number for each column."""
    row = block.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, HALF)
    token, head = row // heads, row % heads
    cells = (token < tokens)[:, None] & (column < half)[None, :]
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


@triton.jit(do_not_specialize=["heads", "k_by_head", "k_by_sequence", "v_by_head", "v_by_sequence"])
def attend_slots(
    q,
    new_keys,
    new_values,
    keys,
    values,
    starts,
    lengths,
    out,
    scale,
    heads,
    k_by_head,
    k_by_sequence,
    v_by_head,
    v_by_sequence,
    size: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One query of each head of a sequence over its new key and those in its slot. A program computes the query heads that
    share a head of keys: `heads` is the number of those. It also writes the new key and value into the slot."""
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    before = tl.load(lengths + sequence) - 1
    row, column = tl.arange(0, ROWS), tl.arange(0, SIZE)
    inside = (row < GROUP)[:, None] & (column < size)[None, :]
    at = ((sequence * heads + head) * GROUP + row)[:, None] * size + column[None, :]
    queries = tl.load(q + at, mask=inside, other=0.0)
    first = (tl.load(starts + sequence) * heads + head) * size
    by_token = heads * size
    new_key, new_value = sequence * k_by_sequence + head * k_by_head, sequence * v_by_sequence + head * v_by_head
    key = tl.load(new_keys + new_key + column, mask=column < size, other=0.0)
    value = tl.load(new_values + new_value + column, mask=column < size, other=0.0)
    target = first + before * by_token + column
    tl.store(keys + target, key, mask=column < size)
    tl.store(values + target, value, mask=column < size)
    largest = tl.sum(queries.to(tl.float32) * key.to(tl.float32)[None, :], 1) * scale
    total = tl.full((ROWS,), 1.0, tl.float32)
    mixed = tl.zeros((ROWS, SIZE), tl.float32) + value.to(tl.float32)[None, :]
    for start in range(0, before, BLOCK):
        token = start + tl.arange(0, BLOCK)
        known = token < before
        cells = first + token[:, None] * by_token + column[None, :]
        mask = known[:, None] & (column < size)[None, :]
        old_keys = tl.load(keys + cells, mask=mask, other=0.0)
        score = tl.dot(queries, tl.trans(old_keys)) * scale
        score = tl.where(known[None, :], score, float("-inf"))
        larger = tl.maximum(largest, tl.max(score, 1))
        weight = tl.exp(score - larger[:, None])
        share = tl.exp(largest - larger)
        old_values = tl.load(values + cells, mask=mask, other=0.0)
        total = total * share + tl.sum(weight, 1)
        mixed = tl.dot(weight.to(old_values.dtype), old_values, mixed * share[:, None])
        largest = larger
    tl.store(out + at, (mixed / total[:, None]).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["heads"])
def attend_tree(
    q,
    keys,
    values,
    out,
    blocks,
    ancestors,
    starts,
    scale,
    heads,
    size: tl.constexpr,
    TOKENS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program computes a block of tokens, for the query heads that share a head of keys: over the keys of all ancestors,
    then over those of its own segments, each token from the start of its segment to itself. BlockTable
    describes the tables; `heads` are those of keys."""
    entry, head = blocks + tl.program_id(0) * 5, tl.program_id(1)
    first, last, own = tl.load(entry), tl.load(entry + 1), tl.load(entry + 2)
    ancestor, count = tl.load(entry + 3), tl.load(entry + 4)
    row, column, key = tl.arange(0, ROWS), tl.arange(0, SIZE), tl.arange(0, BLOCK)
    token = first + row // GROUP
    known = (row < TOKENS * GROUP) & (token < last)
    at = ((token.to(tl.int64) * heads + head) * GROUP + row % GROUP)[:, None] * size + column[None, :]
    cells = known[:, None] & (column < size)[None, :]
    queries = tl.load(q + at, mask=cells, other=0.0)
    start = tl.load(starts + token, mask=known, other=0)
    scale = scale * 1.4426950408889634  # powers of two are faster than those of e
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, SIZE), tl.float32)
    for index in range(ancestor, ancestor + count):
        seen, length = tl.load(ancestors + 2 * index), tl.load(ancestors + 2 * index + 1)
        for offset in range(0, length, BLOCK):
            inside = offset + key < length
            source = ((seen + offset + key).to(tl.int64) * heads + head)[:, None] * size + column[None, :]
            mask = inside[:, None] & (column < size)[None, :]
            old_keys = tl.load(keys + source, mask=mask, other=0.0)
            score = tl.dot(queries, tl.trans(old_keys)) * scale
            score = tl.where(inside[None, :], score, float("-inf"))
            larger = tl.maximum(largest, tl.max(score, 1))
            weight, share = tl.exp2(score - larger[:, None]), tl.exp2(largest - larger)
            value = tl.load(values + source, mask=mask, other=0.0)
            total = total * share + tl.sum(weight, 1)
            mixed = tl.dot(weight.to(value.dtype), value, mixed * share[:, None])
            largest = larger
    for offset in range(own, last, BLOCK):
        seen_token = offset + key
        source = (seen_token.to(tl.int64) * heads + head)[:, None] * size + column[None, :]
        mask = (seen_token < last)[:, None] & (column < size)[None, :]
        own_keys = tl.load(keys + source, mask=mask, other=0.0)
        score = tl.dot(queries, tl.trans(own_keys)) * scale
        visible = (seen_token[None, :] <= token[:, None]) & (seen_token[None, :] >= start[:, None])
        score = tl.where(visible, score, float("-inf"))
        larger = tl.maximum(largest, tl.max(score, 1))
        finite = tl.where(larger == float("-inf"), 0.0, larger)  # nothing seen yet
        weight, share = tl.exp2(score - finite[:, None]), tl.exp2(largest - finite)
        value = tl.load(values + source, mask=mask, other=0.0)
        total = total * share + tl.sum(weight, 1)
        mixed = tl.dot(weight.to(value.dtype), value, mixed * share[:, None])
        largest = larger
    tl.store(out + at, (mixed / total[:, None]).to(out.dtype.element_ty), mask=cells)
