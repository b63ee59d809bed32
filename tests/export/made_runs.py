"""Runs of the tasks in odd.py, made by `mill eval` in a process of its own: their names are registered nowhere else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from mill.export.run import ExportedRun, select_runs
from tests import forking

ROOT = Path(__file__).parents[2]
ODD = Path(__file__).parent / "odd.py"
KEY = "sk-4f9c02d7a1b3e85866c07e1d2f3a4b5c"
TASKS = "odd_text,odd:choice?x,odd_document,odd_dialog,odd_agent"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "SOME_NAME": KEY}


def mill(
    *words: str, python: str = sys.executable, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command; MLflow without a server writes its files below the working folder."""
    command, environ = [python, "-m", "mill", *words], {**ENVIRONMENT, **environment}
    return forking.run(command, env=environ, cwd=cwd)


def evaluate(output_dir: Path, tasks: str = TASKS, *words: str, python: str = sys.executable) -> ExportedRun:
    """The run of a model with a key in its spec. Some samples fail, so that the exit code is 1; it is 4 at a budget."""
    spec = "odd[path=org/odd,api_key=$SOME_NAME]"
    options = ["--task_paths", str(ODD), "--output_dir", str(output_dir), "--quiet", *words]
    done = mill("eval", spec, tasks, *options, python=python)
    assert done.returncode in (0, 1, 4), done.stderr
    return only_run(output_dir)


def only_run(output_dir: Path) -> ExportedRun:
    (run,), left_out = select_runs([output_dir])
    assert left_out == 0
    return run


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def leaks(folder: Path) -> list[str]:
    """Files with the key, or with half of it."""
    parts = (KEY[:16].encode(), KEY[16:].encode())
    return [str(file) for file in folder.rglob("*") if file.is_file() and any(part in file.read_bytes() for part in parts)]
