"""The index of `mill view` over a million samples: time, memory, and the time of random interactions.

    python benchmarks/view_index.py /tmp/million                 (makes 1.4 GB of samples there, once)
    python benchmarks/view_index.py /tmp/million --samples 100000

The samples are generated, as two runs of four tasks: rows as `mill eval` writes them, with prompts of 600 characters. The
server is a process of its own; interactions are HTTP requests, from sending to the last byte of the answer.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

TOKEN = "0123456789abcdef-view"
TASKS = ("arithmetic", "history", "law", "medicine")
WORDS = ("river", "stone", "paper", "light", "engine", "market", "garden", "winter", "number", "answer", "reason")
LETTERS = "ABCD"


def make_run(folder: Path, name: str, samples: int, seed: int) -> None:
    """A run as `mill eval` writes it: manifest, results and the samples of four tasks."""
    run = folder / f"{name}-{seed:08x}" / "default"
    (run / "samples").mkdir(parents=True, exist_ok=True)
    draw, each = random.Random(seed), samples // len(TASKS)
    entries, results = {}, {}
    for task in TASKS:
        texts = random.Random(task)
        with (run / "samples" / f"{task}.jsonl").open("w") as out:
            right = 0
            for number in range(each):
                right += write_sample(out, name, task, number, texts, draw)
        entries[task] = {"version": 1, "n": each, "total": each, "data_hash": task, "requested": task}
        estimate = {
            "value": right / each,
            "stderr": 0.001,
            "low": right / each - 0.002,
            "high": right / each + 0.002,
            "n": each,
        }
        results[task] = {
            "task": task, "task_type": "multiple_choice", "version": 1, "n_shots": 0, "n": each, "total": each,
            "errors": 0, "truncated": 0, "cut_short": 0, "metrics": {"acc": estimate},
        }  # fmt: skip
    manifest = {
        "model": {"name": name, "backend": "hf", "arguments": {"path": name}},
        "settings": {},
        "tasks": entries,
        "sessions": [{"id": "1", "started": "2026-01-01T00:00:00Z", "seconds": 1.0, "ended": "finished"}],
    }
    (run / "manifest.json").write_text(json.dumps(manifest))
    (run / "results.json").write_text(json.dumps({"tasks": results, "benchmarks": {}}))


def write_sample(out: Any, name: str, task: str, number: int, texts: random.Random, draw: random.Random) -> int:
    """Texts are the same in every run, answers are not. Returns whether the answer is right."""
    question = " ".join(texts.choices(WORDS, k=95))
    gold = LETTERS[number % 4]
    scores = [round(-draw.expovariate(0.5), 4) for _ in LETTERS]
    chosen = LETTERS[scores.index(max(scores))]
    right = int(chosen == gold)
    responses = [[{"score": score, "is_greedy": score == max(scores), "prompt_tokens": 140} for score in scores]]
    row = {
        "model": name, "model_id": name, "settings": "default", "task": task, "id": str(number),
        "category": f"{task} {number % 12}", "prompt": question, "target": gold, "response": None, "reasoning": None,
        "extracted": chosen, "choices": list(LETTERS), "chosen": chosen, "choice_logprobs": scores, "correct": bool(right),
        "error": None, "finish_reason": None, "prompt_tokens": 560, "output_tokens": 4,
        "seconds": round(draw.expovariate(2), 4), "reasoning_tokens": None, "truncated": False,
        "truncated_reasoning": False, "acc": float(right), "continuations": [f" {letter}" for letter in LETTERS],
        "responses": responses, "values": {"acc": [float(right)]},
        "keys": [[f"{number:x}{letter}" for letter in LETTERS]], "doc": {"number": number, "question": question[:200]},
    }  # fmt: skip
    out.write(json.dumps(row) + "\n")
    return right


class Server:
    """`mill view` on a folder, in a process of its own."""

    def __init__(self, folder: Path, cache: Path) -> None:
        command = [sys.executable, "-m", "mill", "view", str(folder), "--no_browser", "--token", TOKEN]
        environment = {**os.environ, "MILL_CACHE": str(cache)}
        self.began = time.perf_counter()
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split(": ", 1)[1].partition("/?")[0]

    def get(self, name: str, **given: Any) -> tuple[Any, float]:
        """The answer and the seconds that it took."""
        query = urllib.parse.urlencode({**given, "token": TOKEN})
        began = time.perf_counter()
        with urllib.request.urlopen(f"{self.address}/api/{name}?{query}", timeout=300) as response:
            body = response.read()
        return json.loads(body), time.perf_counter() - began

    def memory_mb(self) -> float:
        """The largest resident size so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024

    def wait_until(self, done: Any) -> float:
        while True:
            state, _ = self.get("state")
            if done(state):
                return time.perf_counter() - self.began
            time.sleep(0.05)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=20)


def indexed(samples: int) -> Any:
    return lambda state: sum(run["counts"]["right"] + run["counts"]["wrong"] for run in state["runs"]) >= samples


def interactions(runs: list[str], count: int) -> list[tuple[str, str, dict[str, Any]]]:
    """Random ones: lists with filters and sorting, deep pages, samples, comparisons with filters, categories, searches."""
    draw = random.Random(0)
    found: list[tuple[str, str, dict[str, Any]]] = []
    while len(found) < count:
        run, task = draw.choice(runs), draw.choice(["", *TASKS])
        category = {"category": f"{task} {draw.randrange(12)}"} if task and draw.random() < 0.3 else {}
        sort = draw.choice(["order", "id", "category", "status", "seconds", "margin", "v0"])
        listing = {"run": run, "task": task, "sort": sort, "desc": draw.choice(["", "1"]), **category}
        status = draw.choice(["", "right", "wrong"])
        pair = {"a": runs[0], "b": runs[1], "task": task, "cell": draw.choice(["", "regression", "improvement"])}
        kinds: list[tuple[str, str, dict[str, Any]]] = [
            ("list", "samples", {**listing, "status": status}),
            ("list", "samples", {**listing, "status": status}),
            ("sample", "sample", {**listing, "t": task or TASKS[0], "id": str(draw.randrange(1000))}),
            ("pairs", "pairs", {**pair, "sort": draw.choice(["order", "margin", "difference"]), "margin": 0.1}),
            ("compare", "compare", {"a": runs[0], "b": runs[1], "margin": draw.choice([0, 0.1, 0.5]), "task": task}),
            ("pair", "pair", {**pair, "cell": "", "t": task or TASKS[0], "id": str(draw.randrange(1000))}),
            ("categories", "categories", {"run": run, "task": task or TASKS[0]}),
            ("scores", "run", {"run": run}),
        ]
        found.append(draw.choice(kinds))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=1_000_000)
    parser.add_argument("--interactions", type=int, default=200)
    parser.add_argument(
        "--search", action="store_true", help="also wait until all texts can be searched, and measure searches"
    )
    given = parser.parse_args()
    folder = given.folder / f"results-{given.samples}"
    if not folder.exists():
        for seed, name in enumerate(("first", "second"), 1):
            make_run(folder, name, given.samples // 2, seed)
    size = sum(file.stat().st_size for file in folder.rglob("*.jsonl")) / 1e9
    cache = given.folder / f"cache-{time.time_ns()}"
    server = Server(folder, cache)
    try:
        cold = server.wait_until(indexed(given.samples))
        print(f"{given.samples:,} samples, {size:.2f} GB: indexed {cold:.1f} s after the start; {server.memory_mb():.0f} MB")
        server.close()
        server = Server(folder, cache)
        warm = server.wait_until(indexed(given.samples))
        first = server.get("state")[1]
        print(f"started again: list of runs after {warm:.2f} s; the list by itself {1000 * first:.0f} ms")
        measure(server, given)
    finally:
        server.close()


def measure(server: Server, given: argparse.Namespace) -> None:
    runs = [run["uid"] for run in server.get("state")[0]["runs"]]
    _, seconds = server.get("compare", a=runs[0], b=runs[1])
    print(f"first comparison of the two runs (pairs are made): {seconds:.2f} s")
    times: dict[str, list[float]] = {}
    for kind, name, parameters in interactions(runs, given.interactions):
        times.setdefault(kind, []).append(server.get(name, **parameters)[1])
    everything = sorted(value for values in times.values() for value in values)
    for kind, values in sorted(times.items()):
        middle, most = 1000 * statistics.median(values), 1000 * max(values)
        print(f"  {kind:11} n {len(values):3}  median {middle:5.0f} ms  max {most:5.0f} ms")
    p95 = everything[int(0.95 * len(everything))]
    slow = sum(value > 0.3 for value in everything)
    middle = 1000 * statistics.median(everything)
    print(f"{len(everything)} random interactions: p50 {middle:.0f} ms, p95 {1000 * p95:.0f} ms")
    print(f"  the slowest {1000 * everything[-1]:.0f} ms, {slow} above 300 ms")
    if given.search:
        began = time.perf_counter()
        server.wait_until(lambda state: state["search"]["done"] >= state["search"]["total"])
        print(f"all texts can be searched after {time.perf_counter() - began:.0f} s")
        for words in ("river stone", "gard", "nothing-like-this"):
            found, seconds = server.get("samples", run=runs[0], q=words)
            print(f"  search {words!r}: {found['total']:,} samples in {1000 * seconds:.0f} ms")
    print(f"largest memory of the server {server.memory_mb():.0f} MB")


if __name__ == "__main__":
    main()
