"""Write the demo's GGUF weights as float32 safetensors, for engines that read no GGUF.

python scripts/convert_demo_model.py [FOLDER]     (default: .demo/model; writes FOLDER/smollm2)
"""

from __future__ import annotations

import sys
from pathlib import Path

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".demo/model")
    target = folder / "smollm2"
    if (target / "config.json").is_file():
        return
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    options = {"gguf_file": GGUF, "dtype": torch.float32, "quantization_config": GgufConfig(dequantize=True)}
    model = AutoModelForCausalLM.from_pretrained(folder, **options)
    AutoTokenizer.from_pretrained(folder, gguf_file=GGUF).save_pretrained(target)
    model.save_pretrained(target)
    print(f"float32 weights: {target}")


if __name__ == "__main__":
    main()
