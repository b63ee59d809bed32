"""vLLM, imported once: the tests' processes in its environment are forked from one that has imported this file."""

import multiprocessing
import sys
from pathlib import Path

# vLLM spawns an engine's processes on a CPU. Each would import vLLM again, which takes 14 seconds of a processor.
multiprocessing.context._concrete_contexts["spawn"] = multiprocessing.get_context("fork")  # type: ignore[attr-defined]

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "shim"), str(HERE.parents[1] / ".engines/vllm/torchvision")]

import vllm.entrypoints.openai.api_server  # noqa: E402
import vllm.v1.engine.core  # noqa: E402
import vllm.v1.worker.cpu_worker  # noqa: E402, F401

import mill.models.vllm  # noqa: E402, F401
