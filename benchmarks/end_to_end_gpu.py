"""Whole commands on a GPU, from the shell's prompt and back: where the seconds go, and how far that is from the floor.

    MILL_DATA=... python benchmarks/end_to_end_gpu.py --tokenizer FOLDER [--layers 32] [--only mmlu,again,dry_run,gsm8k]
        [--folder end-to-end] [--json out.json]

Makes an 8B-shaped Llama of random bfloat16 weights (vocabulary 128,256) with the tokenizer of FOLDER, saved as shards of
5 GB as models on the hub are. Each command runs in a new process; the first one finds nothing: no digest of the weights, no
response. The floor is distinct tokens x 2 x parameters at the rate of a large matrix product, measured first.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

COMMANDS = {
    "mmlu": ["mmlu", "--n_shots", "5"],
    "again": ["mmlu", "--n_shots", "5"],
    "dry_run": ["mmlu", "--n_shots", "5", "--dry_run"],
    "gsm8k": ["gsm8k", "--n_shots", "5", "--max_tokens", "256"],
}


def make_model(folder: Path, tokenizer: Path, layers: int) -> None:
    from scoring_gpu import make_model as make

    model = make(layers)
    model.save_pretrained(folder, max_shard_size="5GB")
    for file in tokenizer.glob("*token*"):
        shutil.copy(file, folder / file.name)
    body = sum(one.numel() for one in model.model.layers.parameters())
    (folder / "body.txt").write_text(str(body))


def matrix_rate() -> float:
    """Operations a second of a large product in bfloat16."""
    import torch

    one, other = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for _ in range(5):
        one @ other
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(50):
        one @ other
    torch.cuda.synchronize()
    return float(50 * 2 * 8192**3 / (time.perf_counter() - started))


def run(name: str, model: Path, folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Seconds of a command, and what the run says about itself."""
    command = [sys.executable, "-m", "mill", "eval", f"hf[path={model},dtype=bfloat16]", *COMMANDS[name]]
    started = time.perf_counter()
    done = subprocess.run(
        [*command, "--output_dir", str(folder / "results"), "--quiet"], env=environment, capture_output=True, text=True
    )
    seconds = time.perf_counter() - started
    if done.returncode:
        sys.exit(f"{name} failed: {done.stdout[-1000:]}{done.stderr[-3000:]}")
    manifests = sorted((folder / "results").glob("*/*/manifest.json"), key=lambda file: file.stat().st_mtime)
    session = json.loads(manifests[-1].read_text())["sessions"][-1] if manifests and name != "dry_run" else {}
    return {"seconds": seconds, "session": session}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(COMMANDS))
    parser.add_argument("--folder", type=Path, default=Path("end-to-end"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    model = options.folder / "model"
    if not (model / "body.txt").exists():
        subprocess.run(
            [
                sys.executable,
                "-c",
                "import sys, pathlib; sys.path.insert(0, sys.argv[1]); import end_to_end_gpu as e;"
                "e.make_model(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3]), int(sys.argv[4]))",
                str(Path(__file__).parent),
                str(model),
                str(options.tokenizer),
                str(options.layers),
            ],
            check=True,
        )
    shutil.rmtree(options.folder / "results", ignore_errors=True)
    shutil.rmtree(options.folder / "cache", ignore_errors=True)
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "XDG_CACHE_HOME": str(options.folder / "cache")}
    found = {name: run(name, model, options.folder, environment) for name in COMMANDS if name in options.only}
    for name, one in found.items():
        print(f"{name}: {one['seconds']:.1f} s")
        for phase, seconds in one["session"].get("timing", {}).items():
            print(f"    {phase:<18} {seconds:7.2f}")
        print("   ", {key: value for key, value in one["session"].items() if key not in ("timing", "command", "cwd")})
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
