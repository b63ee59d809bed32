"""Engines in separate environments, as prepared by `make engines`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests import forking

ROOT = Path(__file__).parents[2]
MODEL = ROOT / ".demo/model/smollm2"
# The first is a torchvision that can be imported with vLLM's torch; the second has its metadata.
VLLM_PATHS = [str(ROOT / "tests/engines/shim"), str(ROOT / ".engines/vllm/torchvision")]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}


def engine(name: str) -> Path:
    if not (MODEL / "config.json").is_file():
        pytest.skip(f"the engine {name} is not prepared: make engines")
    return environment(name)


def environment(name: str) -> Path:
    """The programs of an environment that needs no model."""
    folder = ROOT / ".engines" / name
    if not (folder / "ready").is_file():
        pytest.skip(f"the environment {name} is not prepared: make engines")
    return folder / "bin"


def shallow(folder: Path, layers: int = 4) -> Path:
    """The first layers of the model: its text is nonsense, but fast enough for engines that are slow on a CPU.

    Two unused tokens become those of reasoning, which vLLM's parser needs.
    """
    from safetensors.torch import load_file, save_file

    for file in MODEL.iterdir():
        if file.suffix != ".safetensors":
            text = file.read_text().replace("<jupyter_start>", "<think>").replace("<jupyter_text>", "</think>")
            (folder / file.name).write_text(text)
    config = json.loads((MODEL / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
    above = tuple(f"model.layers.{number}." for number in range(layers, config["num_hidden_layers"]))
    weights = load_file(MODEL / "model.safetensors")
    lower = {name: tensor for name, tensor in weights.items() if not name.startswith(above)}
    save_file(lower, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def conform(python: Path | str, *arguments: str) -> str:
    command = [str(python), "-m", "mill", "conform", *arguments]
    done = forking.run(command, env=ENVIRONMENT, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return done.stdout
