"""Write the demo's GGUF weights as float32 safetensors, for engines that read no GGUF.

python scripts/convert_demo_model.py [FOLDER]     (default: .demo/model; writes FOLDER/smollm2)
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".demo/model")
    target = folder / "smollm2"
    if any(target.glob("*.safetensors")):
        return
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    options = {"gguf_file": GGUF, "dtype": torch.float32, "quantization_config": GgufConfig(dequantize=True)}
    model = AutoModelForCausalLM.from_pretrained(folder, **options)
    unfinished = folder / "smollm2.part"  # an interrupted conversion is not taken for a whole one
    shutil.rmtree(unfinished, ignore_errors=True)
    AutoTokenizer.from_pretrained(folder, gguf_file=GGUF).save_pretrained(unfinished)
    model.save_pretrained(unfinished)
    shutil.rmtree(target, ignore_errors=True)
    unfinished.rename(target)
    print(f"float32 weights: {target}")


if __name__ == "__main__":
    main()
