"""The linear layers of a model whose products may be computed in another way."""

from __future__ import annotations

from typing import Any


def plain_linear_layers(model: Any) -> list[Any]:
    """Those in float32 on a CPU. A quantized or adapted layer computes something else."""
    import torch

    layers: list[Any] | None = model.__dict__.get("_mill_linear_layers")
    if layers is None:
        plain = [
            module for module in model.modules() if type(module) is torch.nn.Linear and "forward" not in module.__dict__
        ]
        layers = [one for one in plain if one.weight.device.type == "cpu" and one.weight.dtype == torch.float32]
        model.__dict__["_mill_linear_layers"] = layers
    return layers
