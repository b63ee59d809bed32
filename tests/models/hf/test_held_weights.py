"""Weights that a user holds may change between two calls: the answers are always those of the weights as they are."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import mill
from mill.api.model import MillModel, ModelCapabilities
from mill.models.spec.open import open_model


def train(network: Any) -> None:
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    network(input_ids=torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def copy_into_data(network: Any) -> None:
    """This moves no data, and torch counts no new version."""
    weight = network.model.layers[0].mlp.down_proj.weight
    version, address = weight._version, weight.data_ptr()
    weight.data.copy_(weight.data * 3)
    assert (weight._version, weight.data_ptr()) == (version, address)


def add_hook(network: Any) -> None:
    network.model.layers[0].register_forward_hook(lambda module, given, output: output)


def evaluate(model: MillModel | str, folder: Path) -> tuple[list[Any], int]:
    """The scores of the samples, and how many requests were computed."""
    result = mill.evaluate(model, "numerics", limit=3, max_tokens=4, output_dir=str(folder))
    return result.samples.response.tolist(), result.outcome.tally.computed


@pytest.mark.parametrize("change", [copy_into_data, add_hook])
def test_changed_weights_of_an_opened_model_are_noticed(
    tiny_model: Path, tmp_path: Path, change: Callable[[Any], None]
) -> None:
    spec = f"hf[path={tiny_model},dtype=float32]"
    model: Any = open_model(spec)
    of_file = evaluate(model, tmp_path / "out")
    change(model.model)
    network = model.model
    changed = evaluate(model, tmp_path / "out")
    assert model.model is network, "what a user holds is not dropped"
    assert changed[1] == of_file[1] == 3
    # What transformers saves and mill loads again is the same network.
    network.save_pretrained(copied := tmp_path / "copied")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (copied / name).write_bytes((tiny_model / name).read_bytes())
    assert changed[0] == evaluate(f"hf[path={copied},dtype=float32]", tmp_path / "other")[0]
    assert evaluate(model, tmp_path / "out") == (changed[0], 0), "nothing changed since"
    assert evaluate(spec, tmp_path / "out") == (of_file[0], 0)
    train(network)
    assert evaluate(model, tmp_path / "out")[1] == 3


def test_adapters_are_noticed(tiny_model: Path, tmp_path: Path) -> None:
    """A layer that adds to another, as adapters do; one that is switched off has the same weights."""

    class Adapted(torch.nn.Module):
        def __init__(self, base: Any) -> None:
            super().__init__()
            self.base, self.enabled = base, True
            self.added = torch.nn.Linear(base.in_features, base.out_features, bias=False)

        def forward(self, hidden: Any) -> Any:
            return self.base(hidden) + (self.added(hidden) if self.enabled else 0)

    model: Any = open_model(f"hf[path={tiny_model},dtype=float32]")
    torch.manual_seed(1)
    plain = evaluate(model, tmp_path)[0]
    mlp = model.model.model.layers[0].mlp
    mlp.down_proj = Adapted(mlp.down_proj)
    mlp.down_proj.added.weight.data.normal_(0, 3)
    adapted = evaluate(model, tmp_path)
    mlp.down_proj.enabled = False
    switched_off = evaluate(model, tmp_path)
    mlp.down_proj.enabled = True
    again = evaluate(model, tmp_path)
    assert (adapted[1], switched_off, again) == (3, (plain, 3), (adapted[0], 0)) and adapted[0] != plain


class Own(MillModel):
    """A user's class around a network."""

    model_name = "own"
    capabilities = ModelCapabilities()

    def __init__(self, network: Any) -> None:
        self.network = network

    def _generate_batch(self, batch: Any, gen_kwargs: Any) -> list[str]:
        return [f"{self.network(torch.ones(1, 2)).item():.4f}" for _ in batch]


class Lazy(Own):
    """One that loads at first use, and another network where that was dropped."""

    def __init__(self) -> None:
        self.network = None

    def load(self) -> None:
        if self.network is None:
            self.network = made(1.0)


def made(value: float) -> Any:
    network = torch.nn.Linear(2, 1, bias=False)
    network.weight.data.fill_(value)
    return network


def test_networks_given_to_a_class_are_identified_by_content(tmp_path: Path) -> None:
    network = made(1.0)
    model = Own(network)
    assert evaluate(model, tmp_path) == (["2.0000"] * 3, 3)
    assert evaluate(Own(made(1.0)), tmp_path) == (["2.0000"] * 3, 0)
    network.weight.data.fill_(2.0)
    assert evaluate(model, tmp_path) == (["4.0000"] * 3, 3)
    model.network = made(3.0)
    assert evaluate(model, tmp_path) == (["6.0000"] * 3, 3)


def test_networks_that_a_class_loads_are_read_after_they_changed(tmp_path: Path) -> None:
    model: Any = Lazy()
    assert evaluate(model, tmp_path) == (["2.0000"] * 3, 3)
    assert evaluate(model, tmp_path) == (["2.0000"] * 3, 0), "loaded by the call itself"
    model.network.weight.data.fill_(2.0)
    assert evaluate(model, tmp_path) == (["4.0000"] * 3, 3)
    model.network = None  # loaded again
    assert evaluate(model, tmp_path) == (["2.0000"] * 3, 0)


NETWORK = """
import torch

class Scaled(torch.nn.Linear):
    def forward(self, hidden):
        return super().forward(hidden) * {factor}
"""


def test_the_code_of_a_network_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of equal weights. One whose file was edited meanwhile is read by no one: each call computes afresh."""
    monkeypatch.syspath_prepend(tmp_path)
    networks, out = [], tmp_path / "out"
    for factor in (1, 2):
        file = tmp_path / f"scaled_{factor}.py"
        file.write_text(NETWORK.format(factor=factor))
        os.utime(file, (0, 0))  # older than this process
        network = importlib.import_module(file.stem).Scaled(2, 1, bias=False)
        network.weight.data.fill_(1.0)
        networks.append(network)
    assert [evaluate(Own(network), out) for network in networks] == [(["2.0000"] * 3, 3), (["4.0000"] * 3, 3)]
    assert evaluate(Own(networks[0]), out)[1] == 0
    os.utime(tmp_path / "scaled_1.py")
    assert [evaluate(Own(networks[0]), out)[1] for _ in range(2)] == [3, 3]
