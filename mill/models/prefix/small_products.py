"""Linear layers of a few rows on an x86 CPU, as in decoding: the weight times the rows, not the rows times the weight.

The products are the same; in this order MKL was 2 to 2.5 times as fast with 8 to 32 rows (torch 2.10).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

FEWEST, MOST = 8, 32  # rows where this order is faster; between MOST and twice as many it takes two halves


@contextmanager
def small_products(model: Any, rows: int) -> Iterator[None]:
    """Inside this context the model's linear layers compute this number of rows in the faster order, if that is another."""
    import torch

    faster = FEWEST <= rows < 2 * MOST and torch.backends.mkl.is_available()
    layers = _plain_layers(model) if faster else []
    for layer in layers:
        layer.forward = _Product(layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _plain_layers(model: Any) -> list[Any]:
    """Those in float32 on a CPU. A quantized or adapted layer computes something else."""
    import torch

    layers: list[Any] | None = model.__dict__.get("_mill_linear_layers")
    if layers is None:
        plain = [one for one in model.modules() if type(one) is torch.nn.Linear and "forward" not in one.__dict__]
        layers = [one for one in plain if one.weight.device.type == "cpu" and one.weight.dtype == torch.float32]
        model.__dict__["_mill_linear_layers"] = layers
    return layers


class _Product:
    """Called in place of a linear layer's forward."""

    def __init__(self, layer: Any) -> None:
        self.weight, self.bias = layer.weight, layer.bias

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        import torch

        rows = hidden.reshape(-1, hidden.shape[-1])
        parts = [rows] if len(rows) <= MOST else rows.tensor_split(2)
        found = [(self.weight @ part.t()).t() for part in parts]
        out = torch.cat(found) if len(found) > 1 else found[0].contiguous()  # attention kernels need rows in one piece
        if self.bias is not None:
            out += self.bias
        return out.view(*hidden.shape[:-1], -1)
