"""When the samples and prompts of a plan are written: at once, or while a model computes that was loaded in a thread."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from mill.api.errors import ModelError
from mill.api.request import Request
from mill.cli.main import run
from tests import toy


class LoadingInThread:
    """The start of a model whose weights load in a thread."""

    loading = True

    def expect(self, requests: Sequence[Request]) -> None: ...

    def prepare(self, requests: Sequence[Request]) -> None: ...


class Runs:
    """Runs of the toy model in one folder, and which files of samples there were at each of its requests."""

    def __init__(self, folder: Path) -> None:
        self.out = folder / "out"
        self.seen: list[list[str]] = []

    def __call__(self, task: str) -> int:
        return run(["eval", "toy[path=toy]", task, "--output_dir", str(self.out), "--quiet"])

    def files(self) -> list[Path]:
        return sorted(self.out.glob("*/*/samples/*.jsonl"))

    def rows(self) -> list[dict[str, object]]:
        (file,) = self.files()
        return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """With a model that says that it loads in a thread."""
    runs, note = Runs(tmp_path), toy.ToyModel._note

    def noted(model: toy.ToyModel, request: Request) -> int:
        runs.seen.append([file.stem for file in runs.files()])
        return note(model, request)

    monkeypatch.setattr(toy.ToyModel, "_note", noted)
    monkeypatch.setattr(toy.ToyModel, "startup", LoadingInThread())
    return runs


def test_samples_are_written_while_a_loaded_model_computes(runs: Runs) -> None:
    assert runs("toy_choice") == 0
    assert runs.seen[0] == []
    rows = runs.rows()
    assert len(rows) == toy.N and all(row["responses"] and "acc" in row for row in rows)


def test_samples_are_written_before_the_requests_of_other_models(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy.ToyModel, "startup", None)
    assert runs("toy_choice") == 0
    assert runs.seen[0] == ["toy_choice"]


def test_samples_of_a_model_that_cannot_be_loaded_are_written(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: toy.ToyModel) -> None:
        raise ModelError("the weights are damaged")

    monkeypatch.setattr(toy.ToyModel, "load", fails)
    assert runs("toy_choice") != 0
    rows = runs.rows()
    assert len(rows) == toy.N and all(row["responses"] == [[]] for row in rows)


def test_missing_samples_of_a_run_that_was_killed_are_written_again(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_FAILS", "toy_choice 3")  # whose requests are sent again
    runs("toy_choice")
    (file,) = runs.files()
    file.unlink()
    runs.seen.clear()
    monkeypatch.setattr(toy.ToyModel, "startup", None)
    runs("toy_choice")
    assert runs.seen and runs.seen[0] == ["toy_choice"]


def test_a_failure_to_write_them_is_an_error_of_the_run(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ModelError("no space left")

    monkeypatch.setattr("mill.runs.files.write_samples", fails)
    assert runs("toy_choice") != 0
    assert "no space left" in capsys.readouterr().err


# Prompts as the model got them.


def prompts(folder: Path) -> dict[str, list[str]]:
    """Task -> the prompts of its samples."""
    tasks = "toy_gen,toy_choice,toy_text"
    assert run(["eval", "toy[path=toy]", tasks, "--output_dir", str(folder), "--quiet"]) == 0
    files = sorted(folder.glob("*/*/samples/*.jsonl"))
    return {file.stem: [json.loads(line)["prompt"] for line in file.read_text().splitlines()] for file in files}


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each prompt that is rendered, whether the main thread does it."""
    found: list[bool] = []

    def rendered(_: toy.ToyModel, request: Request) -> str:
        found.append(threading.current_thread() is threading.main_thread())
        return f"<user>{request.text}</user>"

    monkeypatch.setattr(toy.ToyModel, "rendered_prompt", rendered, raising=False)
    return found


def test_prompts_rendered_beside_the_model_are_those_rendered_at_the_end(
    threads: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_end = prompts(tmp_path / "at-end")
    assert set(at_end) == {"toy_gen", "toy_choice", "toy_text"} and all(threads)
    assert all(prompt.startswith("<user>") for found in at_end.values() for prompt in found)
    count = len(threads)
    threads.clear()
    monkeypatch.setattr(toy.ToyModel, "startup", LoadingInThread())
    assert prompts(tmp_path / "beside") == at_end
    assert len(threads) == count and not any(threads)


def test_prompts_that_cannot_be_rendered_are_shown_as_they_were_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = prompts(tmp_path / "before")

    def fails(_: toy.ToyModel, __: Request) -> str:
        raise ValueError("no template")

    monkeypatch.setattr(toy.ToyModel, "rendered_prompt", fails, raising=False)
    monkeypatch.setattr(toy.ToyModel, "startup", LoadingInThread())
    assert prompts(tmp_path / "after") == before
