"""`mill export` on the command line: targets, options that have no effect, folders, exit codes; `--log_to` before a run."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from mill.api.registry import exporters
from mill.cli.main import run as main
from mill.export.run import ExportedRun
from mill.export.target import known_exporters, parse_target
from mill.view.scan import scan
from tests.export.made_runs import ODD


@pytest.fixture
def results(odd_run: ExportedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the output folder, which commands may write to."""
    shutil.copytree(odd_run.folder.path.parents[1], tmp_path / "results")
    return tmp_path / "results"


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line of a command that is refused."""
    assert main(["export", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize("text", ["mlflow:http://127.0.0.1:5000", "wandb:team/evals", "parquet:"])
def test_targets(text: str) -> None:
    target = parse_target(text)
    assert f"{target.name}:{target.address}" == text


PLUGIN = """
from mill.export.target import Exporter

def write(runs, folder, samples=True):
    (folder / "names.txt").write_text(" ".join(run.model for run in runs))
    return [folder / "names.txt"]

EXPORTER = Exporter("mill-test-names", "the names of models", write=write)
"""


def test_a_target_of_another_package(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mill_test_names.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    points = [
        EntryPoint("mill-test-names", "mill_test_names:EXPORTER", "mill.exporters"),
        EntryPoint("mill-test-broken", "mill_test_missing:EXPORTER", "mill.exporters"),
        EntryPoint("parquet", "mill_test_names:EXPORTER", "mill.exporters"),
    ]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [point for point in points if point.group == group])
    monkeypatch.setattr(exporters, "_entries", {})
    monkeypatch.setattr(exporters, "_builtin", "mill.export.target:builtin_exporters")  # as in a new process
    monkeypatch.setattr(exporters, "_plugins_read", False)
    (tmp_path / "out").mkdir()
    assert main(["export", str(results), "--to", "mill-test-names", "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out/names.txt").read_text() == "org/odd"
    assert main(["export", str(results), "--to", "mlflow", "--out", "x"]) == 2
    error = capsys.readouterr().err
    assert "the target mill-test-broken cannot be used: cannot import mill_test_missing" in error
    assert "lm-eval, mill-test-names, parquet, not for mlflow" in error
    assert error.count("mill already has a target parquet: mill_test_names:EXPORTER is not used under that name") == 1
    assert [*known_exporters()].count("mill-test-names") == 1
    assert main(["export", str(results), "--to", "parquet", "--out", str(tmp_path / "own")]) == 0
    assert (tmp_path / "own/samples.parquet").exists()


def test_what_has_no_effect_is_refused(capsys: pytest.CaptureFixture[str], results: Path) -> None:
    run = str(results)
    assert "did you mean mlflow?" in refused(capsys, run, "--to", "mflow")
    assert "parquet is a file format; --out names its folder" in refused(capsys, run, "--to", "parquet:x")
    assert "--out is for hub" in refused(capsys, run, "--to", "mlflow", "--out", "x")
    assert "--project is for mlflow, trackio, wandb, not for hub" in refused(capsys, run, "--to", "hub", "--project", "x")
    assert "--no_report is for" in refused(capsys, run, "--to", "hub", "--no_report")
    assert "--offline is for wandb, not for trackio" in refused(capsys, run, "--to", "trackio", "--offline")
    assert "names the project already" in refused(capsys, run, "--to", "wandb:a", "--project", "b")
    assert "give --out FOLDER" in refused(capsys, run, run, "--to", "parquet")
    assert "nowhere does not exist" in refused(capsys, "nowhere", "--to", "parquet")
    (results / "empty").mkdir()
    assert "contains no run" in refused(capsys, str(results / "empty"), "--to", "parquet")


def test_files_are_in_the_folder_of_the_runs_and_view_does_not_list_them_again(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(results), "--to", "lm-eval", "--no_samples"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"written: {results}/exports/lm-eval/org__odd/results_")
    found = scan(results)
    assert (len(found.runs), found.logs) == (1, [])
    assert len(scan(results / "exports" / "lm-eval").logs) == 1  # where the user names the folder itself


def test_a_damaged_run_is_left_out_and_the_exit_code_is_1(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (results / "model" / "default").mkdir(parents=True)
    (results / "model" / "default" / "manifest.json").write_text("{}")
    assert main(["export", str(results), "--to", "parquet", "--out", str(results.parent / "out")]) == 1
    assert "left out: " in capsys.readouterr().err
    assert (results.parent / "out" / "samples.parquet").is_file()


def test_a_damaged_sample_is_one_line(results: Path, odd_run: ExportedRun, capsys: pytest.CaptureFixture[str]) -> None:
    file = next(results.rglob("odd_text.jsonl"))
    file.write_text(file.read_text() + '{"id": 3}\n')
    line = refused(capsys, str(results), "--to", "parquet")
    assert "odd_text.jsonl, line 5, is not valid" in line


def test_a_link_in_the_folder_of_exports_is_not_followed(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, out = results.parent / "elsewhere", results.parent / "out"
    target.mkdir()
    out.mkdir()
    (out / "org__odd").symlink_to(target)
    assert main(["export", str(results), "--to", "lm-eval", "--out", str(out)]) == 2
    assert "is a link" in capsys.readouterr().err
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("name", ["mlflow", "wandb", "trackio", "inspect"])
def test_a_missing_package_is_named_with_its_extra(
    name: str, results: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = "inspect_ai" if name == "inspect" else name
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.log", None)
    line = refused(capsys, str(results), "--to", name)
    assert line == f'mill: the target {name} needs the package {package}: pip install -e ".[{name}]"'


def test_log_to_is_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    words = ["eval", "odd[path=a]", "odd_text", "--task_paths", str(ODD), "--output_dir", "out", "--log_to"]
    for target, expected in (
        ("parquet", "parquet is a file format, written by `mill export`"),
        ("mlflw", "did you mean mlflow?"),
        ("mlflow:sqlite:///a.db", '--log_to mlflow needs the package mlflow: pip install -e ".[mlflow]"'),
    ):
        assert main([*words, target]) == 2
        assert expected in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
