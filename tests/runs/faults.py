"""Runs of the toy model as processes of their own, and what anybody with a JSON reader sees of them afterwards."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mill.store.folder import RunFolder
from mill.store.session import read_sessions
from tests import forking
from tests.outcomes import assert_same_end, recorded
from tests.waiting import until

TOY = Path(__file__).parent.parent / "toy.py"
ROOT = TOY.parent.parent
TASKS = "toy_gen,toy_choice,toy_text,toy_dialog"
N = 30
PATIENCE_S = 120.0

Run = subprocess.Popen[bytes]


def arguments(out: Path, tasks: str = TASKS, *options: str, model: str = "toy[path=toy]", file: Path = TOY) -> list[str]:
    return ["eval", model, tasks, "--task_paths", str(file), "--output_dir", str(out), *options]


def start(
    out: Path,
    log: Path,
    *options: str,
    tasks: str = TASKS,
    delay: float = 0.0,
    env: Mapping[str, str] | None = None,
    **model: Any,
) -> Run:
    """`mill eval`, which adds what it computes to `log` and writes its standard error to `log`.err."""
    environment = {**os.environ, "TOY_N": str(N), "TOY_LOG": str(log), "TOY_DELAY": str(delay), "PYTHONPATH": str(ROOT)}
    with stderr_file(log).open("ab") as stderr:
        return forking.popen(
            [sys.executable, "-m", "mill", *arguments(out, tasks, *options, **model)],
            env={**environment, **(env or {})},
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )


def stderr_file(log: Path) -> Path:
    return log.with_name(f"{log.name}.err")


def stderr_of(log: Path) -> str:
    return stderr_file(log).read_text()


def computed(log: Path) -> list[str]:
    """The keys of what was computed, in order; one that was computed twice is there twice."""
    return log.read_text().split() if log.exists() else []


def until_first_response(run: Run, log: Path, answers: int = 1) -> None:
    """So far into the work; a run that ended before is no mistake."""
    until(lambda: run.poll() is not None or len(computed(log)) >= answers, lambda: f"response {answers}: {stderr_of(log)}")


def kill(run: Run) -> None:
    run.send_signal(signal.SIGKILL)
    run.wait(PATIENCE_S)


def resume(out: Path, log: Path, *options: str, **how: Any) -> None:
    """The same command again, which must succeed and compute nothing that was recorded."""
    known = recorded(out)
    log.write_text("")
    assert start(out, log, *options, **how).wait(PATIENCE_S) == 0, stderr_of(log)
    assert not set(computed(log)) & set(known), "a recorded answer was computed again"


def leftovers(out: Path) -> list[Path]:
    """Drafts, and files of sessions that have not ended."""
    folders = [RunFolder(file.parent) for file in out.glob("*/*/sessions")]
    unended = [folder.path / name for folder in folders for name, one in read_sessions(folder).items() if not one.ended]
    return unended + [file for file in out.rglob(".*") if file.is_file()]


def killed_at_random(out: Path, log: Path, dice: random.Random, *options: str, **how: Any) -> None:
    """Kill a run at one of its first responses. It cannot end before: its model stops after a few."""
    log.write_text("")
    run = start(out, log, *options, **{**how, "env": {**how.get("env", {}), "TOY_HOLD": "13"}})
    until_first_response(run, log, dice.randrange(1, 13))
    assert run.poll() is None, stderr_of(log)
    kill(run)


def assert_resumes_after_kills(folder: Path, *, kills: int, **how: Any) -> Path:
    """A run that is killed at random moments and resumed ends like an undisturbed one, and computes nothing twice; its
    output folder."""
    whole, log, out = folder / "whole", folder / "log", folder / "out"
    assert start(whole, log, **how).wait(PATIENCE_S) == 0, stderr_of(log)
    dice = random.Random(5)
    for _ in range(kills):
        killed_at_random(out, log, dice, **how)
    known = recorded(out)
    assert 0 < len(known) < len(recorded(whole))
    log.write_text("")
    assert start(out, log, **how).wait(PATIENCE_S) == 0, stderr_of(log)
    assert not set(computed(log)) & set(known), "a recorded response was computed again"
    assert_same_end(out, whole)
    return out
