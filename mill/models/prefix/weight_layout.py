"""Weights by columns in memory: on ARM CPUs with OpenBLAS, products of many rows are then 5 % faster (torch 2.10).

A product of one row, as in decoding, is slower, so weights have this layout only while much is scored.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mill.models.prefix.linear_layers import plain_linear_layers

LEAST_TOKENS = 8192  # to be computed: the gain is then several times what changing the layout costs


@contextmanager
def weights_by_columns(model: Any, tokens: int) -> Iterator[None]:
    """Inside this context the weights of linear layers have the faster layout for computing so many tokens, if that is
    another. Their values and shapes are the same."""
    layers = _layers(model) if tokens >= LEAST_TOKENS and _is_faster() else []
    for layer in layers:
        layer.weight.data = layer.weight.data.t().contiguous().t()
    try:
        yield
    finally:
        for layer in layers:
            layer.weight.data = layer.weight.data.contiguous()


def _is_faster() -> bool:
    import torch

    return platform.machine() == "aarch64" and not torch.backends.mkl.is_available()


def _layers(model: Any) -> list[Any]:
    """All but those whose weight is that of an embedding, where tokens are looked up by rows."""
    import torch

    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    layers = plain_linear_layers(model)
    return [layer for layer in layers if id(layer.weight) not in embeddings and layer.weight.is_contiguous()]
