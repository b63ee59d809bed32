"""SmolLM2 135M Instruct: the weights that `make demo` downloads into the repository, if present, else those of the hub.

In float32 for CPUs.
"""

from pathlib import Path

_demo = Path(__file__).parents[4] / ".demo/model/SmolLM2-135M-Instruct.Q4_1.gguf"

needs = "1 GB of memory; runs on any CPU"
model = {
    "type": "hf",
    "path": str(_demo) if _demo.is_file() else "HuggingFaceTB/SmolLM2-135M-Instruct",
    "dtype": "float32",
    "max_context_length": 2048,
}
