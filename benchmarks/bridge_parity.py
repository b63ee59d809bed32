"""Are scores through the bridge those of lm-evaluation-harness? Both run the same tasks on the same deterministic model.

    MILL_DATA=... python benchmarks/bridge_parity.py [--limit 20] [--only blimp,cmmlu]

Run it with the Python of an environment that has lm-eval. It takes every task of lm-eval whose data is on MILL_DATA, runs
lm-eval's `simple_evaluate` and mill's bridge, and compares every metric and every standard error, those of groups included.
Prints one line for each task that differs or cannot run, then the counts; exits 1 where any differs by more than 1e-9.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import math
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from lm_eval import evaluator
from lm_eval.tasks import TaskManager

from mill.api.consent import Consent, consenting
from mill.api.errors import MillError
from mill.bridges.lm_eval import library, scoring
from mill.bridges.lm_eval.index import GROUP, TASK
from mill.bridges.lm_eval.library import local_first, local_splits
from mill.bridges.lm_eval.scoring import hub_metrics
from mill.plan.sampling import SampleChoice
from mill.runs.evaluate import RunConfig
from mill.runs.plan import plan
from mill.score.run_scores import Outcome
from mill.tasks.load import select, source

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.bridges.hash_model import HashLM

TOLERANCE = 1e-9
BOOTSTRAP = 1000  # resamples on both sides: lm-eval's own 100,000 take hours in Python


def available() -> list[str]:
    """The tasks whose data is on the search path, and the groups of which all are."""
    with library.quiet():
        entries = TaskManager().task_index
    here = {
        name
        for name, entry in entries.items()
        if isinstance((config := entry.cfg or {}).get("dataset_path"), str)
        and entry.kind.name == "TASK"
        and has_data(config)
    }
    index = source("lm-eval").index  # type: ignore[attr-defined]

    def whole(name: str, within: tuple[str, ...] = ()) -> bool:
        entry = index.get(name)
        if entry is None or name in within:
            return False
        if entry.kind == TASK:
            return name in here
        return bool(entry.members) and all(whole(member, (*within, name)) for member in entry.members)

    return sorted(here) + sorted(name for name, entry in index.items() if entry.kind == GROUP and whole(name))


def has_data(config: dict[str, Any]) -> bool:
    """Whether the evaluated split is there."""
    split = config.get("test_split") or config.get("validation_split")
    found = local_splits(config["dataset_path"], config.get("dataset_name"), config.get("dataset_kwargs") or {})
    return found is not None and split in found.files


def of_lm_eval(name: str, limit: int) -> dict[str, dict[str, Any]]:
    folders = [str(folder) for folder in source("lm-eval").folders_of(name)]  # type: ignore[attr-defined]
    with library.quiet(), local_first(), hub_metrics():
        manager = TaskManager(include_defaults=False, include_path=folders)
        found = evaluator.simple_evaluate(
            HashLM(),
            tasks=[name],
            limit=limit,
            bootstrap_iters=BOOTSTRAP,
            task_manager=manager,
            log_samples=False,
            confirm_run_unsafe_code=True,
        )
    assert found is not None
    return {task: dict(metrics) for task, metrics in found["results"].items()}


def of_mill(name: str, limit: int, folder: Path) -> Outcome:
    run = plan("hash-model", select([f"lm-eval:{name}"]), RunConfig(output_dir=folder, samples=SampleChoice(limit=limit)))
    return run.execute(quiet=True)


def differences(theirs: dict[str, dict[str, Any]], ours: Outcome) -> list[str]:
    """Every metric and standard error that is missing on one side or differs."""
    found = []
    estimates = {one.task: one.metrics for one in ours.tasks} | {one.benchmark: one.metrics for one in ours.benchmarks}
    for task, metrics in theirs.items():
        own = estimates.get(f"lm-eval:{task}", {})
        for key, value in metrics.items():
            name, comma, kind = key.partition(",")
            if not comma or name.endswith("_stderr"):
                continue
            estimate = own.get(scoring.metric_name(name, kind))
            stderr = metrics.get(f"{name}_stderr,{kind}")
            pair = (None, None) if estimate is None else (estimate.value, estimate.stderr)
            if not (equal(value, pair[0]) and equal(None if stderr == "N/A" else stderr, pair[1])):
                found.append(f"{task} {key}: lm-eval {value} ± {stderr}, mill {pair[0]} ± {pair[1]}")
    return found


def equal(theirs: Any, ours: float | None) -> bool:
    if theirs is None or ours is None:
        return theirs is None and ours is None
    return math.isclose(float(theirs), ours, rel_tol=TOLERANCE, abs_tol=TOLERANCE) or (
        math.isnan(theirs) and math.isnan(ours)
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=20)
    parser.add_argument("--only", type=lambda text: text.split(","), default=[""])
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    scoring.BOOTSTRAP = BOOTSTRAP
    equal_count = different = refused = 0
    for name in available():
        if not name.startswith(tuple(given.only)):
            continue
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                theirs = of_lm_eval(name, given.limit)
        except BaseException as error:
            theirs, why = {}, f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"
        with tempfile.TemporaryDirectory() as folder:
            try:
                ours = of_mill(name, given.limit, Path(folder))
            except MillError as error:
                refused += 1
                print(f"{name}: refused by mill: {error}" + ("" if theirs else f"; lm-eval: {why}"), flush=True)
                continue
        errors = sum(one.errors for one in ours.tasks)
        if not theirs and errors:
            refused += 1
            print(f"{name}: {errors} samples fail in mill: {ours.tasks[0].failures[0]['error']}; lm-eval: {why}", flush=True)
            continue
        found = differences(theirs, ours) if theirs else [f"lm-eval fails: {why}"]
        if found or errors:
            different += 1
            print(f"{name}: {json.dumps(found[:3])} {errors} failed", flush=True)
        else:
            equal_count += 1
    print(f"{equal_count} equal, {different} different, {refused} cannot run")
    return 1 if different else 0


if __name__ == "__main__":
    with consenting(Consent(confirm_run_unsafe_code=True)):  # of the deterministic model, whose programs are known
        sys.exit(main())
