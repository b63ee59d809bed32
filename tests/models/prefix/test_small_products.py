"""Linear layers of few rows: another order of the same products; attention against its definition."""

from __future__ import annotations

import pytest
import torch

from mill.models.prefix.attention import _plain_attention, partial_attention
from mill.models.prefix.fused_layers import FEWEST, MOST, small_products


class _Doubled(torch.nn.Linear):
    """Not a plain layer: its forward must stay."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(hidden)


@pytest.mark.parametrize(("rows", "bias"), [(FEWEST - 1, True), (FEWEST, False), (MOST, True), (MOST + 1, True)])
def test_the_products_are_those_of_the_layers(rows: int, bias: bool) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(48, 96, bias=bias), torch.nn.GELU(), _Doubled(96, 32, bias=bias))
    hidden = torch.randn(1, rows, 48)
    with torch.inference_mode():
        expected = model(hidden)
        with small_products(model, rows):
            replaced = "forward" in model[0].__dict__
            found = model(hidden)
    assert replaced == (FEWEST <= rows <= MOST and torch.backends.mkl.is_available())
    assert found.shape == expected.shape and found.is_contiguous()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert "forward" not in model[0].__dict__ and "forward" not in model[2].__dict__


@pytest.mark.parametrize("tokens", [1, 64])
def test_attention_of_grouped_heads_is_that_of_the_definition(tokens: int) -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(6, tokens, 16), torch.randn(2, 50, 16), torch.randn(2, 50, 16)
    found = partial_attention(q, k, v, 0.25, causal=False)
    expected = _plain_attention(q, k, v, 0.25, causal=False, softcap=None)
    torch.testing.assert_close(found.out, expected.out, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.lse, expected.lse, rtol=1e-5, atol=1e-6)
