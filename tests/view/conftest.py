"""Runs of the toy backend: two models on the same tasks, as `mill eval` writes them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mill.cli.main import run
from mill.view.index import ResultsIndex

TOY = Path(__file__).parents[1] / "toy.py"
TASKS = "toy_gen,toy_choice,toy_text,toy_dialog"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs; the second has failed samples, and one task less."""
    folder = tmp_path_factory.mktemp("view") / "results"
    evaluate(folder, "toy[path=one]", TASKS)
    os.environ["TOY_FAILS"] = "toy_gen 1"
    try:
        evaluate(folder, "toy[path=two,scale=2.0]", "toy_gen,toy_choice,toy_text", expected=1)
    finally:
        del os.environ["TOY_FAILS"]
    return folder


def evaluate(folder: Path, model: str, tasks: str, *options: str, expected: int = 0) -> None:
    for name in [name for name in sys.modules if name.startswith("mill_file_")]:  # another test's registration is over
        del sys.modules[name]
    command = ["eval", model, tasks, "--task_paths", str(TOY), "--output_dir", str(folder), "--quiet", *options]
    assert run(command) == expected


@pytest.fixture
def index(results: Path, tmp_path: Path) -> Iterator[ResultsIndex]:
    found = ResultsIndex(results, cache=tmp_path / "index")
    found.sync()
    yield found
    found.close()


def uid_of_model(index: ResultsIndex, model: str) -> str:
    (uid,) = [uid for uid, run in index.runs.items() if run.model == model]
    return uid


def lines_of(results: Path, model: str, task: str) -> list[dict[str, Any]]:
    """The samples of a task as the file has them."""
    (file,) = results.glob(f"{model}-*/default/samples/{task}.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]
