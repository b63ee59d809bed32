"""Queries, keys and values in one matrix product on CUDA: those of keys and values alone are too small for all of its
processors, in decoding above all.

The weights of the three layers become parts of one tensor, so this takes no memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PROJECTIONS = ("q_proj", "k_proj", "v_proj")
Part = tuple[Any, str, Any]
"""An owner, the name of its attribute, and what replaces that."""


def joint_projections(model: Any) -> list[Part]:
    """The forward of each projection that can be computed with the others."""
    found: list[Part] = []
    for module in model.modules():
        layers = [getattr(module, name, None) for name in PROJECTIONS]
        if _can_be_joined(layers):
            product = JointProduct(layers)
            found += [(layer, "forward", partial(product, index)) for index, layer in enumerate(layers)]
    return found


def _can_be_joined(layers: Sequence[Any]) -> bool:
    """Whether these are plain linear layers of one input. A quantized or adapted layer computes something else."""
    import torch

    if not all(type(layer) is torch.nn.Linear and "forward" not in layer.__dict__ for layer in layers):
        return False
    kinds = {(layer.weight.shape[1], layer.weight.dtype, layer.weight.device, layer.bias is None) for layer in layers}
    plain = all(type(layer.weight.data) is torch.Tensor and layer.weight.is_contiguous() for layer in layers)
    return plain and len(kinds) == 1 and len({layer.weight.data_ptr() for layer in layers}) == len(layers)


class JointProduct:
    """Called in place of the forward of each layer. The first layer computes all, of the same input; a layer that gets
    another input computes its own part alone."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self.layers = layers
        self.weight = _joined([layer.weight for layer in layers])
        self.bias = _joined([layer.bias for layer in layers]) if layers[0].bias is not None else None
        self._input: torch.Tensor | None = None
        self._parts: dict[int, torch.Tensor] = {}

    def __call__(self, index: int, hidden: torch.Tensor) -> torch.Tensor:
        from torch.nn.functional import linear

        if index == 0:
            sizes = [layer.weight.shape[0] for layer in self.layers]
            self._input, self._parts = hidden, dict(enumerate(linear(hidden, self.weight, self.bias).split(sizes, dim=-1)))
        if hidden is not self._input or index not in self._parts:
            self._input, self._parts = None, {}
            return linear(hidden, self.layers[index].weight, self.layers[index].bias)
        part = self._parts.pop(index)
        if not self._parts:
            self._input = None
        return part


def _joined(parameters: Sequence[Any]) -> torch.Tensor:
    """One tensor of which the parameters are parts from now on."""
    import torch

    with torch.inference_mode(False), torch.no_grad():  # parameters are used outside of that mode too
        joint = torch.cat([parameter.data for parameter in parameters])
        for parameter, part in zip(parameters, joint.split([len(one) for one in parameters]), strict=True):
            parameter.data = part
    return joint
