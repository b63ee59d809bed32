"""What does infer-check 0.2.6 report of two servers, what does mill, and how long does each take?

    python benchmarks/infer_check.py --model FILE.gguf --infer_check PATH/TO/infer-check [--prompts 60] [--tokens 48]

Starts two llama-servers with four slots each on the same weights and compares one with the other on the same prompts, as
plain completions, with both tools; then the same on a stand-in for a server with hardware to spare, which takes a fixed
time for a request and four at once. Prints seconds, the ratio, and what each tool says.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.servers import FaultServer, llama_server

SLOTS = 4
REQUEST_S = 0.4  # what the stand-in takes for an answer


@contextlib.contextmanager
def stand_in() -> Iterator[str]:
    """Four requests at once, each for a fixed time, whatever the machine."""
    slots = threading.Semaphore(SLOTS)

    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        with slots:
            time.sleep(REQUEST_S)
        text = f" {len(str(body.get('prompt') or body.get('messages')))}"
        choice = {"text": text, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return {"choices": [choice], "usage": {"completion_tokens": 1}}

    with FaultServer(answer) as server:
        yield server.url


def write_prompts(file: Path, count: int, tokens: int) -> None:
    from mill.tasks.suite import SUITES

    rows = SUITES["numerics"]()[:count]
    lines = ({"id": row["id"], "text": row["prompt"], "category": row["category"], "max_tokens": tokens} for row in rows)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def timed(command: list[str]) -> tuple[float, str]:
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    seconds = time.perf_counter() - started
    if done.returncode > 1:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")
    return seconds, done.stdout


def compare(name: str, urls: tuple[str, str], model: str, prompts: Path, infer_check: str, folder: Path) -> None:
    specs = [f"openai-compat[model={model},base_url={url}]" for url in urls]
    mine = ["--label-a", "one", "--label-b", "other", "--output", str(folder / f"mill-{name}"), "--no-report", "--quiet"]
    ours, told = timed([sys.executable, "-m", "mill", "compare", *specs, "--prompts", str(prompts), *mine])
    # infer-check's compare takes one address for both models; its diff takes two.
    backends = ["--backends", "openai-compat,openai-compat", "--base-urls", ",".join(urls), "--no-chat"]
    place = ["--prompts", str(prompts), "--output", str(folder / f"infer-check-{name}")]
    theirs, said = timed([infer_check, "diff", "--model", model, *backends, *place])
    print(f"## {name}\nmill {ours:.1f} s, infer-check {theirs:.1f} s, ratio {theirs / ours:.2f}\n")
    print(f"### mill\n{told}\n### infer-check\n{said}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file")
    parser.add_argument("--infer_check", required=True, help="the command of infer-check 0.2.6")
    parser.add_argument("--prompts", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=48)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        prompts = folder / "prompts.jsonl"
        write_prompts(prompts, options.prompts, options.tokens)
        with stand_in() as one, stand_in() as other:
            compare("stand-in", (one, other), "m", prompts, options.infer_check, folder)
        with llama_server(options.model, slots=SLOTS) as one, llama_server(options.model, slots=SLOTS) as other:
            compare("llama-server", (one, other), options.model.name, prompts, options.infer_check, folder)


if __name__ == "__main__":
    main()
