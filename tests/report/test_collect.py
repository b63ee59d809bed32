"""The long table of all scores below an output folder."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mill.cli.main import run
from mill.report.collect import collect

TOY = str(Path(__file__).parents[1] / "toy.py")
Evaluate = Callable[..., None]


@pytest.fixture
def evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Evaluate:
    """Run the toy model with some arguments on `toy_gen`, below the folder out."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOY_N", "8")

    def call(arguments: str, *options: str, code: int = 0) -> None:
        argv = ["eval", f"toy[{arguments}]", "toy_gen", "--task_paths", TOY, "--quiet", "--output_dir", "out", *options]
        assert run(argv) == code

    return call


def printed(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    capsys.readouterr()
    assert run(["collect", "--output_dir", "out", *options]) == 0
    return capsys.readouterr().out


def test_n_counts_scored_samples_and_failed_the_others(
    evaluate: Evaluate, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY_FAILS", "toy_gen 3")
    evaluate("path=a", "--limit", "6", code=1)
    (row,) = csv.DictReader(io.StringIO(printed(capsys, "--format", "csv")))
    assert (row["n"], row["failed"], row["total"]) == ("5", "1", "8")
    (line,) = [line for line in printed(capsys).splitlines() if "toy_gen" in line]
    assert line.split()[-2:] == ["5/8", "1"]


def test_runs_of_one_model_are_distinguished_by_their_arguments(
    evaluate: Evaluate, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in ("path=a", "path=a,scale=2", "path=a,scale=3", "path=b,scale=2"):
        evaluate(arguments)
    evaluate("path=a,scale=2", "--seed", "1")
    rows = collect(Path("out"))
    assert sorted((row["model"], row["model_args"]) for row in rows) == [
        ("a", ""),
        ("a", "scale=2"),
        ("a", "scale=2"),
        ("a", "scale=3"),
        ("b", ""),
    ]
    assert sorted(line.split()[1] for line in printed(capsys).splitlines() if "scale=" in line) == [
        "scale=2",
        "scale=2",
        "scale=3",
    ]


def test_models_that_differ_in_no_argument_have_the_name_of_their_folder(evaluate: Evaluate) -> None:
    """As weights that changed in one folder; a manifest without arguments is no error."""
    evaluate("path=a")
    evaluate("path=a,scale=2")
    folders = sorted(Path("out").glob("*/*"))
    for folder in folders:
        manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
        del manifest["model"]["arguments"]
        (folder / "manifest.json").write_text(json.dumps(manifest))
    assert [row["model_args"] for row in collect(Path("out"))] == [folder.parent.name for folder in folders]


def test_scores_and_lists_have_the_same_formats(evaluate: Evaluate, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate("path=a")
    assert printed(capsys, "--format", "md") == printed(capsys, "--format", "markdown")

    def listed(what: str, form: str) -> str:
        assert run(["ls", what, "--output_dir", "out", "--format", form]) == 0
        return capsys.readouterr().out

    (folder,) = Path("out").glob("*/*")
    (entry,) = json.loads(listed("runs", "json"))
    assert entry.pop("last_session").endswith(" finished")
    assert entry == {"run": str(folder), "tasks": ["toy_gen"], "samples": 8, "failed": 0}
    (line,) = csv.DictReader(io.StringIO(listed("runs", "csv")))
    assert (line["run"], line["tasks"], line["samples"]) == (str(folder), "toy_gen", "8")
    assert listed("runs", "markdown").splitlines()[:2] == [
        "| run | tasks | samples | failed | last session |",
        "| --- | --- | ---: | ---: | --- |",
    ]
    tasks = {task["task"]: task for task in json.loads(listed("tasks", "json"))}
    assert tasks["piqa"] == {"task": "piqa", "type": "MULTIPLE_CHOICE", "shots": 0, "metrics": ["acc", "acc_norm"]}
    assert tasks["mmlu"]["shots"] is None
    assert json.loads(listed("models", "json"))[0]["aliases"] == ["huggingface", "transformers"]
