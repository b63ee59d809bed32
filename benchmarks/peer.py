"""Running lm-evaluation-harness beside mill: its own task definitions, on the rows that mill reads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from mill.api.task import Task
from mill.tasks.data import find_local, load_split
from mill.tasks.load import select
from mill.tasks.perplexity import RAW
from mill.tasks.prompted import PromptedTask

# Runs first in the peer's process; argv is (plan file, result file).
PRELUDE = """
import json, sys, time
import datasets
plan = json.load(open(sys.argv[1]))

def load_dataset(path=None, name=None, **kwargs):
    files = plan["rows"][path + "/" + (name or "")]
    files = {"train": next(iter(files.values())), **files}  # a zero-shot task still opens its train split
    return datasets.DatasetDict({split: datasets.Dataset.from_list(json.load(open(file))) for split, file in files.items()})

datasets.load_dataset = load_dataset
import lm_eval
"""


def run_peer(python: str, code: str, tasks: dict[str, int | None], folder: Path, **plan: Any) -> Any:
    """Run `code` in the peer's Python on the rows of these tasks, and return the JSON it wrote to argv[2]."""
    command, result = plan_peer(python, code, tasks, folder, **plan)
    subprocess.run(command, check=True, stdout=sys.stderr)
    return json.loads(result.read_text())


def plan_peer(
    python: str, code: str, tasks: dict[str, int | None], folder: Path, *, with_shots: bool = False, **plan: Any
) -> tuple[list[str], Path]:
    """Write the rows of these tasks. Returns the peer's command, and the file to which it will write its result."""
    rows = {}
    for task in select(list(tasks)).tasks:
        files = {}
        for split, found in _splits(task, with_shots).items():
            file = folder / f"{task.name}-{split}.json"
            file.write_text(json.dumps(found))
            files[split] = str(file)
        dataset = task.dataset if isinstance(task, PromptedTask) else RAW
        rows[f"{dataset.name}/{dataset.config or ''}"] = files
    given, result = folder / "plan.json", folder / "result.json"
    given.write_text(json.dumps({"rows": rows, "tasks": tasks, **plan}))
    return [python, "-c", PRELUDE + code, str(given), str(result)], result


def _splits(task: Task, with_shots: bool) -> dict[str, list[Any]]:
    """The evaluated rows by the name of their split, and those of examples."""
    if not isinstance(task, PromptedTask):
        return {"test": [dict(sample.doc) for sample in task.samples()]}
    found = {task.splits[0]: load_split(task.dataset, task.splits)[1]}
    for split in task.shot_splits:
        if (with_shots and find_local(task.dataset, split)) or (task.n_shots and task.fixed_shots):
            found[split] = load_split(task.dataset, (split,))[1]
    return found
