"""What does infer-check 0.2.6 report of two models on a server, what does mill, and how long does each take?

    python benchmarks/infer_check.py --model FOLDER --vllm PATH/TO/python --infer_check PATH/TO/infer-check [--prompts 40]

Starts a vLLM server that takes four requests at once and serves the same weights under two names, and compares one with the
other on the same prompts, as plain completions, with both tools; before that the same on a stand-in for a server with
hardware to spare, which takes a fixed time for a request and four at once. Its prefix cache is off, so that the second tool
gains nothing from the first. Prints seconds, the ratio, and what each tool prints.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.servers import FaultServer, free_port, serving, wait_for

SLOTS = 4
NAMES = ("one", "other")
REQUEST_S = 0.4  # what the stand-in takes for an answer


@contextlib.contextmanager
def stand_in() -> Iterator[str]:
    """Four requests at once, each for a fixed time on any machine."""
    slots = threading.Semaphore(SLOTS)

    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        with slots:
            time.sleep(REQUEST_S)
        text = f" {len(str(body.get('prompt') or body.get('messages')))}"
        choice = {"text": text, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return {"choices": [choice], "usage": {"completion_tokens": 1}}

    with FaultServer(answer, models=NAMES) as server:
        yield server.url


def write_prompts(file: Path, count: int, tokens: int) -> None:
    from mill.tasks.data import read_rows
    from mill.tasks.suite import SUITES

    rows = read_rows(SUITES["numerics"])[:count]
    lines = ({"id": row["id"], "text": row["prompt"], "category": row["category"], "max_tokens": tokens} for row in rows)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def timed(command: list[str]) -> tuple[float, str]:
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if done.returncode > 1:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
    return seconds, done.stdout


def compare(name: str, url: str, prompts: Path, infer_check: str, folder: Path) -> None:
    specs = [f"openai-compat[model={model},base_url={url}]" for model in NAMES]
    command = [sys.executable, "-m", "mill", "compare", *specs, "--prompts", str(prompts), "--no_report", "--quiet"]
    ours, printed = timed([*command, "--forced_tokens", "0", "--output", str(folder / f"{name}-answers")])
    whole, printed = timed([*command, "--output", str(folder / f"{name}-all")])
    # infer-check's compare takes one address for both models; its diff takes two.
    backends = ["--backends", "openai-compat,openai-compat", "--base-urls", f"{url},{url}", "--no-chat"]
    paths = ["--prompts", str(prompts), "--output", str(folder / f"infer-check-{name}")]
    theirs, their_output = timed([infer_check, "diff", "--model", NAMES[0], *backends, *paths])
    print(f"## {name}\nmill {ours:.1f} s ({whole:.1f} s with KL), infer-check {theirs:.1f} s, ratio {theirs / ours:.2f}\n")
    print(f"### mill\n{printed}\n### infer-check\n{their_output}", flush=True)


@contextlib.contextmanager
def vllm_server(python: str, weights: str) -> Iterator[str]:
    """With four slots."""
    port = str(free_port())
    options = ["--served-model-name", *NAMES, "--dtype", "float32", "--max-model-len", "1024", "--max-num-seqs", str(SLOTS)]
    options += ["--enforce-eager", "--no-enable-prefix-caching", "--host", "127.0.0.1", "--port", port]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", weights, *options]
    with serving(environment, *command) as process:
        url = f"http://127.0.0.1:{port}"
        wait_for(url, process.poll)
        yield url


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a folder with the weights")
    parser.add_argument("--vllm", required=True, help="the Python of an environment with vLLM")
    parser.add_argument("--infer_check", required=True, help="the command of infer-check 0.2.6")
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=48)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prompts = folder / "prompts.jsonl"
        write_prompts(prompts, options.prompts, options.tokens)
        with stand_in() as url:
            compare("stand-in", url, prompts, options.infer_check, folder)
        with vllm_server(options.vllm, options.model) as url:
            compare("vllm", url, prompts, options.infer_check, folder)


if __name__ == "__main__":
    main()
