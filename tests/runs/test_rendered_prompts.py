"""The prompts of samples as the model got them: rendered at the end of a run, or before in a thread."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from mill.api.request import Request
from mill.cli.main import run
from tests import toy
from tests.runs.test_planned_samples import LoadingInThread


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
