"""Whole commands of two checkouts on one machine, alternating: what a change costs or gains, free of the day's luck.

    MILL_DATA=... python benchmarks/before_and_after.py --before OTHER_CHECKOUT --spec SPEC [--tasks mmlu gsm8k]
        [--options "--n_shots 5 --max_tokens 256"] [--rounds 3] [--seconds 500]

Each command is a new process that finds compiled bytecode and nothing else: no digest of the weights, no response, no
compiled kernel. Prints the best of each checkout and their ratio; stops before a round that would pass the given seconds.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from whole_command import IMPORTS, ROOT, environment, last_session, run_command


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="a checkout of the commit to compare with")
    parser.add_argument("--spec", required=True)
    parser.add_argument("--tasks", nargs="+", default=["mmlu", "gsm8k"])
    parser.add_argument("--options", type=str.split, default=["--n_shots", "5", "--max_tokens", "256"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    trees = {"before": options.before.resolve(), "after": ROOT}
    with tempfile.TemporaryDirectory() as folder:
        for name, tree in trees.items():
            run_command([sys.executable, "-c", IMPORTS], variables(Path(folder, name), tree), tree)
        for task in options.tasks:
            best: dict[str, float] = {}
            longest = 0.0
            for number in range(options.rounds):
                if number and time.monotonic() + longest > end:
                    print(f"{task}: no time for round {number + 1}", flush=True)
                    break
                started = time.monotonic()
                for name, tree in trees.items():
                    seconds = run(tree, Path(folder, name), [options.spec, task, *options.options])
                    phases = last_session(Path(folder, name, "results")).get("timing", {})
                    best[name] = min(seconds, best.get(name, seconds))
                    print(f"{task[:20]} {name} {seconds:.2f} s {phases}", flush=True)
                longest = max(longest, time.monotonic() - started)
            ratio = best["after"] / best["before"]
            print(f"| {task[:20]} | {best['before']:.2f} | {best['after']:.2f} | {ratio:.3f} |", flush=True)


def variables(folder: Path, tree: Path) -> dict[str, str]:
    cache = folder / "cache"
    own = environment(cache)
    paths = own["PYTHONPATH"].replace(str(ROOT), str(tree), 1)
    bytecode = str(folder / "bytecode")
    return {**own, "PYTHONPATH": paths, "PYTHONPYCACHEPREFIX": bytecode, "TRITON_CACHE_DIR": str(cache / "triton")}


def run(tree: Path, folder: Path, arguments: list[str]) -> float:
    """Seconds of a command that finds no cache and no results."""
    for name in ("cache", "results"):
        shutil.rmtree(folder / name, ignore_errors=True)
    command = [sys.executable, "-m", "mill", "eval", *arguments, "--output_dir", str(folder / "results"), "--quiet"]
    return run_command(command, variables(folder, tree), tree).seconds


if __name__ == "__main__":
    main()
