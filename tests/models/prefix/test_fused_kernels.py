"""Which heads the kernels of attention are used for. The kernels themselves: tests/engines/test_kernels.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from mill.models.prefix import fused_kernels
from mill.models.prefix.fused_kernels import SLOTS, TREE

HEADS, TOKENS, SIZE = 4, 2, 16


@pytest.fixture(autouse=True)
def _tried_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(fused_kernels, "available", lambda: True)
    fused_kernels._can_attend.cache_clear()
    yield
    fused_kernels._can_attend.cache_clear()


def plain_tree(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _table: Any, scale: float) -> torch.Tensor:
    """Two rows that share a prefix: the second does not see the tokens of the first."""
    seen = torch.ones(len(q), len(q), dtype=torch.bool).tril()
    first = fused_kernels.PREFIX + fused_kernels.OWN
    seen[first:, fused_kernels.PREFIX : first] = False
    heads_first = (one.transpose(0, 1) for one in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(*heads_first, attn_mask=seen, scale=scale).transpose(0, 1)


def plain_slot(q: torch.Tensor, *others: Any) -> torch.Tensor:
    _, _, keys, values, _, length, scale = others
    keys, values = keys[:length], values[:length]
    return torch.einsum("hk,khs->hs", torch.einsum("hs,khs->hk", q[0], keys).mul(scale).softmax(1), values)[None]


def can_attend(monkeypatch: pytest.MonkeyPatch, tree: Callable[..., Any], slot: Callable[..., Any]) -> tuple[bool, bool]:
    monkeypatch.setattr(fused_kernels, "attend_tree", tree)
    monkeypatch.setattr(fused_kernels, "attend_slots", slot)
    heads = torch.zeros(HEADS, TOKENS, SIZE)
    tree_agrees, slots_agree = (fused_kernels.can_attend(kernel, heads, heads) for kernel in (TREE, SLOTS))
    return tree_agrees, slots_agree


def test_kernels_that_compute_attention_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_attend(monkeypatch, plain_tree, plain_slot) == (True, True)


def test_kernels_are_not_used_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_kernels, "available", lambda: False)
    assert can_attend(monkeypatch, plain_tree, plain_slot) == (False, False)


def test_kernels_that_do_not_compile_for_these_heads_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def fails(*_: Any) -> torch.Tensor:
        tried.append(1)
        raise RuntimeError("out of resource: shared memory, Required: 262144, Hardware limit: 101376")

    assert can_attend(monkeypatch, plain_tree, fails) == (True, False)
    assert can_attend(monkeypatch, plain_tree, fails) == (True, False) and tried == [1]
    fused_kernels._can_attend.cache_clear()
    assert can_attend(monkeypatch, fails, plain_slot) == (False, True)


@pytest.mark.parametrize("wrong", [torch.zeros_like, lambda out: out * torch.nan, lambda out: out + 1e-5])
def test_kernels_with_other_values_are_not_used(monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., Any]) -> None:
    assert can_attend(monkeypatch, lambda *inputs: wrong(plain_tree(*inputs)), plain_slot) == (False, True)
    fused_kernels._can_attend.cache_clear()
    assert can_attend(monkeypatch, plain_tree, lambda *inputs: wrong(plain_slot(*inputs))) == (True, False)
