"""Options that have no effect, and values that cannot be right: one line and exit code 2, before a model is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

import mill
from mill.api.errors import SpecError
from mill.cli.main import run
from tests.runs.faults import ROOT, TOY

AGENT = ROOT / "tests/toy_agent.py"
NO_MODEL = "hf[path=/no/such/model]"


@pytest.fixture(autouse=True)
def few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_N", "4")


def refusal(capsys: pytest.CaptureFixture[str], tmp_path: Path, *words: str, tasks: str = "toy_gen") -> str:
    """The one line of `mill eval`, which has written nothing."""
    paths = ["--task_paths", f"{TOY},{AGENT}", "--output_dir", str(tmp_path / "out")]
    assert run(["eval", NO_MODEL, tasks, *words, *paths]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert not (tmp_path / "out").exists()
    return line


def refusal_of_file(capsys: pytest.CaptureFixture[str], tmp_path: Path, options: str) -> str:
    file = tmp_path / "run.yaml"
    file.write_text(f"models: ['{NO_MODEL}']\ntasks: [toy_gen]\ntask_paths: ['{TOY}']\n{options}\n")
    assert run(["eval", "--config", str(file), "--output_dir", str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line.replace(f" in {file}", "")


@pytest.mark.parametrize(
    ("option", "tasks", "message"),
    [
        ("max_rounds", "toy_gen", "toy_gen is not a dialog"),
        ("max_rounds", "toy_gen,toy_choice", "none of the 2 tasks is a dialog"),
        ("max_tool_output", "toy_gen", "toy_gen is not a dialog with tools"),
        ("max_tool_output", "toy_gen,toy_dialog", "none of the 2 tasks is a dialog with tools"),
    ],
)
def test_an_option_that_no_task_uses_is_refused(
    option: str, tasks: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refusal(capsys, tmp_path, f"--{option}", "3", tasks=tasks)
    assert line == f"mill: --{option} has no effect: {message}"
    if tasks == "toy_gen":
        assert refusal_of_file(capsys, tmp_path, f"{option}: 3") == line
        with pytest.raises(SpecError, match="has no effect"):
            mill.evaluate(NO_MODEL, "toy_gen", task_paths=[str(TOY)], output_dir=str(tmp_path / "out"), **{option: 3})


def test_one_that_some_of_the_tasks_use_is_not(tmp_path: Path) -> None:
    words = ["--task_paths", f"{TOY},{AGENT}", "--output_dir", str(tmp_path), "--quiet", "--max_rounds", "2"]
    assert run(["eval", "toy-agent[path=a]", "toy_gen,toy_agent", *words, "--max_tool_output", "50"]) == 0


@pytest.mark.parametrize(("option", "most"), [("max_rounds", 1000), ("max_tool_output", 1_000_000)])
def test_a_number_out_of_range_is_refused_with_the_range(
    option: str, most: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = f"mill: --{option} must be a whole number from 1 to {most}, not "
    for value in ("1" + "0" * 30, "0", "1.5", "nan", "9" * 5000):
        line = refusal(capsys, tmp_path, f"--{option}", value)
        assert line.startswith(expected) and len(line) < 200
        if len(value) < 4000:
            assert refusal_of_file(capsys, tmp_path, f"{option}: {value}").startswith(expected.replace("--", ""))


def test_an_image_without_docker_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = "mill: --sandbox_image 'org/python:3' has no effect without --sandbox docker"
    assert refusal(capsys, tmp_path, "--sandbox_image", "org/python:3") == message
    assert refusal(capsys, tmp_path, "--sandbox", "none", "--sandbox_image", "org/python:3") == message
    assert refusal_of_file(capsys, tmp_path, "sandbox_image: org/python:3") == message
    assert run(["score", str(tmp_path), "--sandbox_image", "org/python:3"]) == 2
    assert capsys.readouterr().err == f"{message}\n"
    assert "has no effect" not in refusal_of_file(capsys, tmp_path, "sandbox_image: org/python:3\nsandbox: docker")


def test_a_name_that_is_no_image_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("-v/:/host", "--privileged", "a b", "a\nb", "a\x1b[31m", "x" * 10**4 + " "):
        line = refusal(capsys, tmp_path, "--sandbox", "docker", f"--sandbox_image={name}")
        assert line.startswith("mill: --sandbox_image: ") and line.endswith(" is no name of an image") and len(line) < 200


def test_variables_that_mill_sets_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("messages", "tokenize", "__class__", "self", "raise_exception"):
        message = (
            f"chat_template_kwargs: '{name}' is no variable of the chat template alone: mill sets it, or its package does"
        )
        words = ("--apply_chat_template", "--chat_template_kwargs", f"{name}=1")
        assert refusal(capsys, tmp_path, *words) == f"mill: --{message}"
        assert refusal_of_file(capsys, tmp_path, f"chat_template_kwargs: {{{name}: 1}}") == f"mill: {message}"
