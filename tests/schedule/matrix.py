"""Matrices of the toy model as users schedule them, and the files that they write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests import forking
from tests.waiting import until

ROOT = Path(__file__).parents[2]
TOY = ROOT / "tests/toy.py"
_SET_BY_OTHERS = ("TOY_", "MILL_", "SLURM_JOB", "SUBMITIT_")


def mill(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in its own process and wait for its end."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_SET_BY_OTHERS)}
    environment = {**inherited, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200", **environment}
    command = [sys.executable, "-m", "mill", *argv]
    return forking.run(command, env=environment)


def schedule(out: Path, models: str, tasks: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return mill("schedule", models, tasks, "--task_paths", str(TOY), "--output_dir", str(out), *options, **environment)


def evaluate(out: Path, models: str, tasks: str, *options: str, **environment: str) -> None:
    """The same without any scheduling."""
    shared = ("--task_paths", str(TOY), "--output_dir", str(out), "--quiet", *options)
    done = mill("eval", models, tasks, *shared, **environment)
    assert done.returncode == 0, done.stderr


def check(out: Path) -> tuple[int, str]:
    done = mill("collect", "--check", "--output_dir", str(out))
    return done.returncode, done.stdout


def squeue(states: str = "all") -> list[str]:
    """The names of the jobs in these states."""
    command = ["squeue", "--noheader", "--array", "--format=%i", *([f"--states={states}"] if states != "all" else [])]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def all_ended() -> None:
    until(lambda: not squeue(), "end of all jobs")


def logs(out: Path) -> str:
    """The output of all jobs, for the message of a failed test."""
    return "\n".join(file.read_text() for file in sorted((out / "schedule/jobs").glob("*_log.*")))


def cells(out: Path) -> dict[str, Any]:
    return {file.stem: json.loads(file.read_text()) for file in (out / "schedule/cells").glob("*.json")}


def jobs(out: Path) -> set[str]:
    return {cell["job"] for cell in cells(out).values()}


def scores(out: Path) -> dict[str, Any]:
    """The results of every run, by its path."""
    return {str(file.parent.relative_to(out)): json.loads(file.read_text()) for file in out.glob("*/*/results.json")}


def computed(log: Path) -> list[str]:
    """Keys of the computed requests, in order; a request that was computed twice is listed twice."""
    return log.read_text().split() if log.exists() else []


def recorded(out: Path) -> set[str]:
    """Keys of the good answers that are on disk."""
    lines = (line for file in out.glob("*/*/record/*.jsonl") for line in file.read_bytes().split(b"\n")[:-1])
    return {entry["key"] for entry in map(json.loads, lines) if not entry["failed"]}
