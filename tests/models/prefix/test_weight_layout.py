"""Weights by columns: the same values, and the old layout afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mill.models.prefix import weight_layout
from mill.models.prefix.weight_layout import LEAST_TOKENS, weights_by_columns


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(30, 8)
        self.inner, self.short = torch.nn.Linear(8, 12), torch.nn.Linear(12, 8, dtype=torch.bfloat16)
        self.head = torch.nn.Linear(8, 30, bias=False)
        self.head.weight = self.embedding.weight


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(weight_layout, "_is_faster", lambda: True)
    torch.manual_seed(0)
    return Tied()


def test_products_are_equal_and_the_layout_is_restored(model: Any) -> None:
    rows, inner = torch.randn(5, 8), model.inner
    wanted, weight, values = inner(rows), inner.weight, inner.weight.detach().clone()
    with pytest.raises(KeyError), weights_by_columns(model, LEAST_TOKENS):
        assert inner.weight.stride() == (1, 12) and inner.weight is weight
        assert torch.allclose(inner(rows), wanted, atol=1e-6) and torch.equal(inner.weight, values)
        raise KeyError
    assert inner.weight.stride() == (8, 1) and torch.equal(inner.weight, values)


def test_other_weights_stay_as_they_are(model: Any) -> None:
    with weights_by_columns(model, LEAST_TOKENS):
        assert model.head.weight.is_contiguous() and model.short.weight.is_contiguous()
        assert not model.inner.weight.is_contiguous()
    with weights_by_columns(model, LEAST_TOKENS - 1):
        assert model.inner.weight.is_contiguous()
