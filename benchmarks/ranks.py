"""Do ranks change an answer?

    python benchmarks/ranks.py MODEL                  MODEL: a folder with weights

Needs the data of `scripts/fetch_demo.py` (MILL_DATA). Runs a slice of MMLU and of GSM8K in one process and as 1, 2 and 4
ranks, and compares all records answer by answer: as they come, and with every row computed by itself (exact=true,
batch_size=1).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
TASKS = (("mmlu_anatomy", 24, 2), ("gsm8k", 8, 2))


def ways() -> dict[str, list[str]]:
    """How Python is started."""
    plain = [sys.executable]
    found = {"one process": plain}
    for count in (1, 2, 4):
        launch = [*plain, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(count)]
        found[f"{count} rank{'s' * (count > 1)}"] = launch
    return found


def identical(model: str, more: str) -> None:
    spec = f"hf[path={model},dtype=float32,max_context_length=1024{more}]"
    records: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name, launch in ways().items():
            out, started = Path(temporary) / name, time.monotonic()
            for task, limit, shots in TASKS:
                arguments = ["eval", spec, task, "--limit", limit, "--n_shots", shots, "--gen_kwargs", "max_gen_toks=48"]
                command = [*launch, "-m", "mill", *arguments, "--quiet", "--output_dir", out]
                environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
                subprocess.run(list(map(str, command)), env=environment, check=True, capture_output=True)
            records[name] = recorded(out)
            report(name, records[name], records["one process"], time.monotonic() - started)


def report(name: str, found: dict[str, Any], wanted: dict[str, Any], seconds: float) -> None:
    texts = [key for key in wanted if "text" in wanted[key]]
    scores = [key for key in wanted if "score" in wanted[key]]
    same = sum(found[key]["text"] == wanted[key]["text"] for key in texts)
    worst = max(abs(found[key]["score"] - wanted[key]["score"]) for key in scores)
    greedy = sum(found[key]["is_greedy"] == wanted[key]["is_greedy"] for key in scores)
    whole = "same keys" if found.keys() == wanted.keys() else "OTHER KEYS"
    print(
        f"{name:15} {whole}, {same}/{len(texts)} texts, {len(scores)} log-likelihoods within {worst:.1e}, "
        f"{greedy}/{len(scores)} greedy flags, {seconds:.0f} s",
        flush=True,
    )


def recorded(out: Path) -> dict[str, Any]:
    lines = [line for file in out.glob("*/*/record/*.jsonl") for line in file.read_text().splitlines()]
    return {entry["key"]: entry["response"] for entry in map(json.loads, lines)}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    given = parser.parse_args()
    for more in ("", ",exact=true,batch_size=1"):
        print("as they come" if not more else "every row by itself", flush=True)
        identical(given.model, more)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
