"""Do ranks and workers change an answer, and how much faster are two than one?

    python benchmarks/workers.py MODEL                  MODEL: a folder with weights
    python benchmarks/workers.py MODEL --only speed

Needs the data of `scripts/fetch_demo.py` (MILL_DATA). The first part runs a slice of MMLU and of GSM8K in one process, as 1,
2 and 4 ranks and with 1, 2 and 3 workers on Ray, and compares all records answer by answer: as they come, and with every row
computed by itself (exact=true, batch_size=1). The second part has a model that does nothing but compute in one thread, and
compares two workers with one in one run; starting them is not counted. It also measures how fast workers stream answers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mill.api.model import StreamContext
from mill.api.request import LOGLIKELIHOOD, Request
from mill.execute.workers import ExecutorChoice, make_backend
from mill.models.spec.open import open_model, resolve_spec
from mill.models.spec.parse import Spec

ROOT = Path(__file__).parent.parent
TASKS = (("mmlu_anatomy", 24, 2), ("gsm8k", 8, 2))
REQUESTS, ROUNDS, LOOPS, STREAMED = 600, 3, 20000, 40000


def ways() -> dict[str, tuple[list[str], list[str]]]:
    """Name -> (how Python is started, further options of mill)."""
    plain = [sys.executable]
    found: dict[str, tuple[list[str], list[str]]] = {"one process": (plain, [])}
    for count in (1, 2, 4):
        launch = [*plain, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(count)]
        found[f"{count} rank{'s' * (count > 1)}"] = (launch, [])
    for count in (1, 2, 3):
        found[f"{count} Ray worker{'s' * (count > 1)}"] = (plain, ["--executor", "ray", "--workers", str(count)])
    return found


def identical(model: str, more: str) -> None:
    spec = f"hf[path={model},dtype=float32,max_context_length=1024{more}]"
    records: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name, (launch, options) in ways().items():
            out, started = Path(temporary) / name, time.monotonic()
            for task, limit, shots in TASKS:
                arguments = ["eval", spec, task, "--limit", limit, "--n_shots", shots, "--gen_kwargs", "max_gen_toks=48"]
                command = [*launch, "-m", "mill", *arguments, "--quiet", "--output_dir", out, *options]
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


def speed() -> None:
    spec = Spec("", {}, config=str(ROOT / "benchmarks/busy_model.py"))
    seconds: dict[int, list[float]] = {1: [], 2: []}
    engines = {}
    for workers in seconds:
        resolved = resolve_spec(spec)
        engines[workers] = make_backend(ExecutorChoice("ray", workers), resolved, open_model(resolved))
    for _ in range(ROUNDS):
        for workers, engine in engines.items():
            seconds[workers].append(timed(engine, workers))
            engine.close()
    best = {workers: min(found) for workers, found in seconds.items()}
    print(f"one worker {best[1]:.2f} s, two {best[2]:.2f} s: {best[1] / best[2]:.2f} times as fast (best of {ROUNDS})")
    print(f"answers that cost nothing, from two workers: {streamed(engines[2]):,.0f} a second")


def streamed(engine: Any) -> float:
    engine.load([])
    list(engine.stream(LOGLIKELIHOOD, questions(16, "warm", 0), StreamContext()))
    started = time.perf_counter()
    list(engine.stream(LOGLIKELIHOOD, questions(STREAMED, "streamed", 0), StreamContext()))
    seconds = time.perf_counter() - started
    engine.close()
    return STREAMED / seconds


def timed(engine: Any, workers: int) -> float:
    """Seconds for all requests, after every worker has answered some."""
    engine.load([])
    list(engine.stream(LOGLIKELIHOOD, questions(8 * workers, "warm"), StreamContext()))
    started = time.perf_counter()
    assert len(list(engine.stream(LOGLIKELIHOOD, questions(REQUESTS, "sent"), StreamContext()))) == REQUESTS
    return time.perf_counter() - started


def questions(count: int, word: str, loops: int = LOOPS) -> Sequence[Request]:
    return [Request(LOGLIKELIHOOD, f"{word} {number} {loops}", " x") for number in range(count)]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("--only", choices=("identical", "speed"))
    given = parser.parse_args()
    if given.only != "speed":
        for more in ("", ",exact=true,batch_size=1"):
            print("as they come" if not more else "every row by itself", flush=True)
            identical(given.model, more)
    if given.only != "identical":
        speed()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
