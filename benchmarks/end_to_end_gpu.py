"""Whole commands on a GPU, from the shell's prompt and back: where the seconds go, and how far that is from the floor.

    MILL_DATA=... python benchmarks/end_to_end_gpu.py --tokenizer FOLDER [--layers 32] [--only mmlu,again,dry_run,gsm8k]
        [--folder end-to-end] [--json out.json]

Makes an 8B-shaped Llama of random bfloat16 weights (vocabulary 128,256) with the tokenizer of FOLDER, saved as shards of
5 GB as models on the hub are. Each command runs in a new process; the first one finds nothing: no digest of the weights, no
response, no compiled kernel. Packages have compiled bytecode, as pip leaves them. The floor of scoring is distinct tokens x
2 x parameters at the rate of a large matrix product, measured first.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from whole_command import IMPORTS, last_session, run_command

MMLU = ["mmlu", "--n_shots", "5"]
COMMANDS = {
    "mmlu": MMLU,
    "again": MMLU,
    "dry_run": [*MMLU, "--dry_run"],
    "gsm8k": ["gsm8k", "--n_shots", "5", "--max_tokens", "256"],
}


def make_model(folder: Path, tokenizer: Path, layers: int) -> None:
    """In a process of its own, so that the GPU is free for the commands."""
    from scoring_gpu import make_model as make

    model = make(layers)
    model.save_pretrained(folder, max_shard_size="5GB")
    for file in tokenizer.glob("*token*"):
        shutil.copy(file, folder / file.name)
    os.sync()  # 16 GB that are still written would slow the first command


def in_process(call: str, *arguments: object) -> str:
    """What a call of a function in this folder prints, in a new process."""
    code = f"import sys, pathlib; sys.path.insert(0, {str(Path(__file__).parent)!r}); {call}"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def run(name: str, model: Path, folder: Path, environment: dict[str, str]) -> dict[str, Any]:
    """Seconds of a command, and what the run says about itself."""
    command = [sys.executable, "-m", "mill", "eval", f"hf[path={model},dtype=bfloat16]", *COMMANDS[name]]
    options = ["--output_dir", str(folder / "results"), "--quiet"]
    done = run_command([*command, *options], environment)
    return {"seconds": done.seconds, "session": last_session(folder / "results") if name != "dry_run" else {}}


def report(name: str, found: dict[str, Any], rate: float) -> None:
    session = found["session"]
    print(f"\n{name}: {found['seconds']:.1f} s")
    print("| phase | seconds |\n| --- | ---: |")
    for phase, seconds in session.get("timing", {}).items():
        print(f"| {phase} | {seconds:.1f} |")
    if session.get("computed_tokens"):
        floor = session["computed_tokens"] * session["device"]["operations_per_token"] / rate
        forward = session["timing"]["forward passes"]
        print(f"| the floor: {session['computed_tokens']:,} distinct tokens at {rate / 1e12:.0f} TFLOP/s | {floor:.1f} |")
        print(
            f"forward passes: {floor / forward:.0%} of the floor; the whole command: {found['seconds'] / floor:.2f} times it"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(COMMANDS))
    parser.add_argument("--folder", type=Path, default=Path("end-to-end"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    model = options.folder / "model"
    if not (model / "config.json").exists():
        paths = "pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])"
        made = f"import end_to_end_gpu as one; one.make_model({paths}, int(sys.argv[3]))"
        in_process(made, model, options.tokenizer, options.layers)
    rate = float(in_process("import scoring_gpu; print(scoring_gpu.matrix_rate())"))
    for name in ("results", "cache"):
        shutil.rmtree(options.folder / name, ignore_errors=True)
    cache = options.folder / "cache"
    folders = {
        "PYTHONPYCACHEPREFIX": options.folder / "bytecode",
        "XDG_CACHE_HOME": cache,
        "TRITON_CACHE_DIR": cache / "triton",
    }
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", **{name: str(folder) for name, folder in folders.items()}}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    run_command([sys.executable, "-c", IMPORTS], environment)
    found = {}
    for name in (name for name in COMMANDS if name in options.only):
        found[name] = run(name, model, options.folder, environment)
        report(name, found[name], rate)
    if options.json:
        options.json.write_text(json.dumps({"rate": rate, **found}, indent=1))


if __name__ == "__main__":
    main()
