"""Which device a model is loaded on; several GPUs are simulated."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from mill.models.device import choose_device
from mill.models.hf.checkpoint import parameter_bytes
from mill.models.prefix.proof import sharing_obstacle

GIB = 1 << 30


@pytest.mark.parametrize(("weights", "expected"), [(16 * GIB, "cuda:0"), (49 * GIB, None), (None, None)])
def test_of_several_gpus_the_first_is_taken_if_it_has_room(
    monkeypatch: pytest.MonkeyPatch, weights: int | None, expected: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (80 * GIB, 80 * GIB) if index == 0 else (0, 0))
    assert choose_device("auto", lambda: weights) == expected
    assert choose_device("cuda:2", lambda: weights) == "cuda:2"
    assert choose_device("balanced", lambda: weights) is None


def test_the_size_of_weights_follows_from_their_config(tiny_model: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    parameters = sum(weight.numel() for weight in model.parameters())
    for dtype, size in (("bfloat16", 2), ("float32", 4)):
        assert parameter_bytes(AutoConfig.from_pretrained(tiny_model), multimodal=False, dtype=dtype) == size * parameters
    assert parameter_bytes(None, multimodal=False, dtype="float32") is None


def test_weights_on_several_devices_are_an_obstacle_to_shared_prefixes(tiny_model: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model).eval()
    assert sharing_obstacle(model) == ""
    model.model.layers[-1].to("meta")
    assert sharing_obstacle(model) == "its weights are on several devices (cpu, meta)"
