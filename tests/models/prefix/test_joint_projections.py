"""Queries, keys and values in one product are those of three, on all architectures."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from mill.models.prefix import fused_layers
from mill.models.prefix.joint_projections import JointProduct, joint_projections
from tests.models.prefix.test_sharing import FAMILIES

SEPARATE = ("qwen2", "llama", "opt", "phi", "mixtral")  # architectures with three layers, with and without a bias


def made(family: str) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **FAMILIES[family][0])).eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_computes_the_same_with_joint_projections(family: str) -> None:
    model, ids = made(family), torch.arange(2, 42)[None]
    with torch.inference_mode():
        wanted = model(input_ids=ids, use_cache=False).logits
        joint = joint_projections(model)
        assert fused_layers._computes(model, joint)
        with fused_layers._replaced(joint):
            found = model(input_ids=ids, use_cache=False).logits
        again = model(input_ids=ids, use_cache=False).logits  # by three products of the same weights
    assert family not in SEPARATE or len(joint) == 3 * model.config.num_hidden_layers
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(again, wanted, atol=1e-5, rtol=1e-5)


def layers(*, bias: bool = False, inputs: int = 8) -> list[torch.nn.Linear]:
    torch.manual_seed(0)
    return [torch.nn.Linear(inputs, outputs, bias=bias) for outputs in (8, 4, 4)]


@pytest.mark.parametrize("bias", [False, True])
def test_the_first_layer_computes_all_and_the_weights_are_no_copies(bias: bool) -> None:
    three = layers(bias=bias)
    hidden = torch.randn(1, 5, 8)
    wanted = [layer(hidden) for layer in three]
    product = JointProduct(three)
    storages = {layer.weight.untyped_storage().data_ptr() for layer in three}
    assert storages == {product.weight.untyped_storage().data_ptr()}
    for index, value in enumerate(wanted):
        torch.testing.assert_close(product(index, hidden), value)
    assert product._input is None and not product._parts  # nothing is held until the next pass


def test_a_layer_with_another_input_computes_its_own_part() -> None:
    three = layers()
    product = JointProduct(three)
    hidden, other = torch.randn(1, 5, 8), torch.randn(1, 7, 8)
    product(0, hidden)
    torch.testing.assert_close(product(1, other), three[1](other))
    torch.testing.assert_close(product(2, hidden), three[2](hidden))
    torch.testing.assert_close(product(1, hidden), three[1](hidden))  # before the first
    assert product._input is None and not product._parts


class Attention(torch.nn.Module):
    def __init__(self, three: list[Any]) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = three


class Quantized(torch.nn.Linear):
    pass


def test_layers_that_compute_something_else_stay_separate() -> None:
    assert len(joint_projections(Attention(layers()))) == 3
    mixed = [*layers()[:2], layers(bias=True)[2]]
    others = [*layers()[:2], torch.nn.Linear(6, 4, bias=False)]
    doubled = [*layers()[:2], torch.nn.Linear(8, 4, bias=False).double()]
    adapted = [*layers()[:2], Quantized(8, 4, bias=False)]
    hooked = layers()
    hooked[1].forward = lambda hidden: hidden  # type: ignore[method-assign]
    one = layers()[0]
    for three in (mixed, others, doubled, adapted, hooked, [one, one, one], [None, None, None]):
        assert joint_projections(Attention(three)) == []


def test_a_model_that_cannot_take_parts_of_a_row_is_found() -> None:
    class Strict(torch.nn.Module):
        device = torch.device("cpu")

        def __init__(self) -> None:
            super().__init__()
            self.attention = Attention(layers())

        def forward(self, input_ids: torch.Tensor, use_cache: bool) -> torch.Tensor:
            hidden = torch.ones(1, input_ids.shape[1], 8)
            return self.attention.q_proj(hidden).view(-1)

    model = Strict()
    joint = joint_projections(model)
    assert len(joint) == 3 and not fused_layers._computes(model, joint)
    assert fused_layers._computes(model, [])
