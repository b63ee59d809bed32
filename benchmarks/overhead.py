"""How much of a run is not the model? Rendering, tokenizing, planning, bookkeeping and writing, beside the forward passes.

    MILL_DATA=... python benchmarks/overhead.py --model MODEL_FOLDER [--tasks mmlu_anatomy,hellaswag] [--limit 60]

Runs the tasks once, with the time inside the network's forward passes measured apart, and then again, when every answer is
known. Prints the seconds of both, and what share of the first was not the network. Imports and loading are outside.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from mill.plan.sampling import SampleChoice
from mill.runs.evaluate import RunConfig
from mill.runs.plan import plan
from mill.tasks.load import load_builtin, select


class Stopwatch:
    """Adds up the time that a network's forward passes take; its parts may be called by themselves."""

    def __init__(self, network: Any) -> None:
        self.seconds, self._started, self._depth = 0.0, 0.0, 0
        for module in (network, network.base_model, network.get_output_embeddings()):
            module.register_forward_pre_hook(self._start)
            module.register_forward_hook(self._stop)

    def _start(self, *_: Any) -> None:
        if not self._depth:
            self._started = time.perf_counter()
        self._depth += 1

    def _stop(self, *_: Any) -> None:
        self._depth -= 1
        if not self._depth:
            self.seconds += time.perf_counter() - self._started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tasks", default="mmlu_anatomy,hellaswag")
    parser.add_argument("--limit", type=int, default=60)
    options = parser.parse_args()
    load_builtin()
    spec, names = f"hf[path={options.model},dtype=float32]", options.tasks.split(",")
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig(output_dir=Path(folder), samples=SampleChoice(limit=options.limit))
        warm = plan(spec, select(names), config)  # imports, and the tokenizer's first use
        warm.model.load()
        assert not warm.model.fast_path.disabled  # type: ignore[attr-defined]
        watch = Stopwatch(warm.model.model)  # type: ignore[attr-defined]
        started = time.perf_counter()
        run = plan(spec, select(names), config)
        planned = time.perf_counter() - started
        replace(run, model=warm.model).execute(quiet=True)
        whole = time.perf_counter() - started
        rest = whole - watch.seconds
        print(f"first run: {whole:.2f} s, forward passes {watch.seconds:.2f} s, planning {planned:.2f} s")
        print(f"not the network: {rest:.2f} s, {100 * rest / whole:.1f} % of the run")
        started = time.perf_counter()
        outcome = plan(spec, select(names), config).execute(quiet=True)
        print(
            f"again: {time.perf_counter() - started:.2f} s, {outcome.tally.computed} computed, {outcome.tally.known} known"
        )


if __name__ == "__main__":
    main()
