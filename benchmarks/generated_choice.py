"""Multiple choice by the generated letter on several engines: accuracy, unreadable answers, and answers as on the first.

    MILL_DATA=... python benchmarks/generated_choice.py "hf[path=./model]" "llama-cpp[base_url=http://127.0.0.1:8080]" \
        [--tasks mmlu_anatomy_gen,mmlu_virology_gen] [--limit 20] [--folder results-generated] [-- --cot --max_tokens 512]

Each row is a `mill eval` with the chat template; the arguments after `--` are those of `mill eval`. Servers must be running.
"same answer" counts samples that have the same extracted choice as those of the first spec: two answers that name no choice
are not the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TASKS = "mmlu_anatomy_gen,mmlu_astronomy_gen,mmlu_marketing_gen"


def run(spec: str, tasks: list[str], arguments: list[str], folder: Path) -> tuple[dict[tuple[str, str], Any], float]:
    """The rows of all samples by task and id, and the seconds that the run took."""
    digest = hashlib.blake2b(json.dumps([spec, tasks, arguments]).encode(), digest_size=4).hexdigest()
    command = [sys.executable, "-m", "mill", "eval", spec, ",".join(tasks), *arguments, "--quiet", "--wait", "240"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([*command, "--output_dir", str(folder / digest)], env=environment, stdout=sys.stderr)
    if done.returncode not in (0, 1):  # 1 is a run with failed samples, which the table counts
        sys.exit(done.returncode)
    samples = {}
    for file in (folder / digest).rglob("samples/*.jsonl"):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            samples[row["task"], row["id"]] = row
    (manifest,) = (folder / digest).rglob("manifest.json")
    return samples, sum(session["seconds"] for session in json.loads(manifest.read_text())["sessions"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("specs", nargs="+", metavar="SPEC")
    parser.add_argument("--tasks", type=lambda text: text.split(","), default=TASKS.split(","))
    parser.add_argument("--limit", default="20", help="samples of each task")
    parser.add_argument("--folder", type=Path, default=Path("results-generated"))
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = parser.parse_args(sys.argv[1:split])
    arguments = ["--apply_chat_template", "--limit", options.limit, *sys.argv[split + 1 :]]
    print("| model | acc | unreadable | same answer | failed | seconds |\n| --- | ---: | ---: | ---: | ---: | ---: |")
    reference: dict[tuple[str, str], Any] = {}
    for spec in options.specs:
        samples, seconds = run(spec, options.tasks, arguments, options.folder)
        reference = reference or samples
        scored = [row for row in samples.values() if row["error"] is None]
        shares = [sum(row[metric] for row in scored) / len(scored) for metric in ("acc", "unreadable")]
        same = sum(
            row["extracted"] is not None and row["extracted"] == reference[key]["extracted"] for key, row in samples.items()
        )
        failed = len(samples) - len(scored)
        print(
            f"| {spec} | {shares[0]:.3f} | {shares[1]:.3f} | {same} of {len(samples)} | {failed} | {seconds:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
