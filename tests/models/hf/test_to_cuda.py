"""Weights that are copied to a CUDA device in blocks."""

from __future__ import annotations

import pytest
import torch

from mill.models.hf import checkpoint as copying
from mill.models.hf.checkpoint import to_cuda

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
WIDTH = 1 << 10


class Tied(torch.nn.Module):
    """Large and small parameters, two that are one, one that is not contiguous, one that is trained, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(WIDTH + 3, WIDTH)
        self.head = torch.nn.Linear(WIDTH, WIDTH + 3, bias=True)
        self.head.weight = self.embedding.weight
        self.weights = torch.nn.Parameter(torch.randn(3, WIDTH, WIDTH).bfloat16(), requires_grad=False)
        self.turned = torch.nn.Parameter(torch.randn(WIDTH, 2 * WIDTH).T)
        self.register_buffer("angles", torch.randn(WIDTH, WIDTH))


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Tied:
    monkeypatch.setattr(copying, "BLOCK", 1_000_000)  # which no size is a multiple of
    monkeypatch.setattr(copying, "FEWEST_THREADS", 1)
    torch.manual_seed(0)
    return Tied()


def check(model: Tied) -> None:
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    moved = to_cuda(model, "cuda:0")
    assert moved is model and model.head.weight is model.embedding.weight
    assert model.embedding.weight.requires_grad and not model.weights.requires_grad
    for name, value in model.state_dict().items():
        assert value.is_cuda and value.dtype == expected[name].dtype and torch.equal(value.cpu(), expected[name]), name


@needs_cuda
def test_all_values_are_the_same_on_the_device(model: Tied) -> None:
    check(model)


@needs_cuda
def test_without_page_locked_memory_weights_are_copied_as_usual(model: Tied, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> torch.Tensor:
        raise RuntimeError("cannot lock memory")

    monkeypatch.setattr(copying, "_copy_large", fails)
    check(model)


def test_quantized_and_scattered_weights_are_left_to_their_own_copy(model: Tied) -> None:
    class Quantized(torch.nn.Parameter):
        pass

    plain = torch.zeros(WIDTH, WIDTH)
    assert copying._is_large(torch.nn.Parameter(plain)) and copying._is_large(model.weights)
    assert not copying._is_large(Quantized(plain)) and not copying._is_large(model.turned)
    assert not copying._is_large(model.head.bias)
