"""Samples in several processes: ranks take and decide the same as one process, and a killed run decides the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.launching import TESTS, run, run_ranks

pytestmark = pytest.mark.slow
RANKED = [str(TESTS / "ranked.py")]


def exam(folder: Path, *more: str, model: str = "exam[name=a,accuracy=0.65]") -> list[str]:
    file = str(TESTS / "toy_exam.py")
    return ["eval", model, "toy_exam", "--task_paths", file, "--output_dir", str(folder), "--quiet", *more]


def results(folder: Path, model: str = "a") -> dict[str, Any]:
    """The results of a model; which process wrote them does not matter."""
    (file,) = folder.glob(f"{model}-*/default/results.json")
    return json.loads(file.read_text())  # type: ignore[no-any-return]


def computed(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


@pytest.mark.parametrize("choice", [("--decide", "acc>0.58"), ("--precision", "0.04"), ("--sample", "300")])
def test_ranks_take_the_same_samples_as_one_process(tmp_path: Path, choice: tuple[str, str]) -> None:
    assert run(exam(tmp_path / "one", *choice), EXAM_LOG=str(tmp_path / "one.log"))[0] == 0
    code, err = run_ranks(2, exam(tmp_path / "two", *choice), EXAM_LOG=str(tmp_path / "two.log"))
    assert code == 0, err
    assert results(tmp_path / "two") == results(tmp_path / "one")
    assert sorted(computed(tmp_path / "two.log")) == sorted(computed(tmp_path / "one.log"))


def test_ranks_without_a_shared_file_system_decide_the_same(tmp_path: Path) -> None:
    choice = ("--decide", "acc>0.58")
    assert run(exam(tmp_path / "one", *choice))[0] == 0
    code, err = run_ranks(2, exam(tmp_path / "two", *choice), RANKED, APART="1")
    assert code == 0, err
    assert results(tmp_path / "two-0") == results(tmp_path / "one")
