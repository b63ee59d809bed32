"""vLLM, imported once: the tests' processes in its environment are forked from one that has imported this file."""

import multiprocessing
import sys
from pathlib import Path

import torch

# vLLM spawns an engine's processes on a CPU. Each would import vLLM again, which takes 14 seconds of a processor.
multiprocessing.context._concrete_contexts["spawn"] = multiprocessing.get_context("fork")  # type: ignore[attr-defined]

# No torchvision exists for vLLM's CPU torch. Another build can be imported: its transforms need no compiled operators.
library = torch.library.Library("torchvision", "DEF")  # operators end with it
library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
sys.path.append(str(Path(__file__).parents[2] / ".engines/vllm/torchvision"))

import vllm.entrypoints.openai.api_server  # noqa: E402
import vllm.v1.engine.core  # noqa: E402
import vllm.v1.worker.cpu_worker  # noqa: E402, F401

import mill.models.vllm.model  # noqa: E402, F401
