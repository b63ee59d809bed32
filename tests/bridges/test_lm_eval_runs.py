"""Runs of lm-eval tasks that are killed, resumed or distributed end like an undisturbed one; `mill lm-eval` resumes too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("lm_eval")

from tests import forking
from tests.bridges.made_tasks import write_tasks
from tests.launching import TESTS, environment
from tests.runs.faults import computed


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_tasks(tmp_path_factory.mktemp("made"))


def in_lm_eval(made: tuple[Path, Path], out: Path, *more: str, **env: str) -> subprocess.CompletedProcess[str]:
    """`mill lm-eval run --model mill` on the toy model."""
    model = f"spec=toy[path=toy],output_dir={out},task_paths={TESTS / 'toy.py'}"
    arguments = ["run", "--model", "mill", "--model_args", model, "--include_path", str(made[0])]
    command = [sys.executable, str(TESTS / "bridges/without_tasks.py"), "lm-eval", *arguments, *more]
    return forking.run(command, env=environment(MILL_DATA=str(made[1]), **env))


def test_lm_eval_with_a_model_of_mill_records_and_resumes(made: tuple[Path, Path], tmp_path: Path) -> None:
    out, log, scores = tmp_path / "out", tmp_path / "log", []
    for number in range(2):
        log.write_text("")
        results = tmp_path / f"results{number}"
        tasks = ["--tasks", "made_text,made_choice,made_document", "--output_path", str(results)]
        done = in_lm_eval(made, out, *tasks, TOY_LOG=str(log))
        assert done.returncode == 0, done.stderr[-3000:]
        (file,) = results.rglob("results_*.json")
        scores.append(json.loads(file.read_text())["results"])
        assert bool(computed(log)) == (number == 0), "the second command computes nothing"
    assert scores[0] == scores[1] and set(scores[0]) == {"made_text", "made_choice", "made_document"}
