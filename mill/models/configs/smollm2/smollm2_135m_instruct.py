"""SmolLM2 135M Instruct: the weights that `make demo` fetched, else those on the hub. float32 runs well on any CPU."""

from pathlib import Path

_fetched = Path(".demo/model/SmolLM2-135M-Instruct.Q4_1.gguf")

model = {
    "type": "hf",
    "path": str(_fetched) if _fetched.is_file() else "HuggingFaceTB/SmolLM2-135M-Instruct",
    "dtype": "float32",
    "max_context_length": 2048,
}
