"""Names of 100 kB, which a manifest of another origin may have, beside ordinary ones."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import shutil
import sys
from pathlib import Path

import pytest

from mill.cli.main import run as mill
from tests.exam_runs import run_exam

LONG = "m" * 100_000


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A run with a long model name and a long metric, and an ordinary one."""
    run = run_exam(tmp_path / "results", "name=a,accuracy=0.65", "--limit", 3, tasks="toy_exam_art")
    other = tmp_path / "results" / "b-12345678" / "default"
    shutil.copytree(run, other)
    manifest, scores = (json.loads((other / name).read_text()) for name in ("manifest.json", "results.json"))
    manifest["model"]["name"], manifest["id"] = LONG, "another"
    metrics = scores["tasks"]["toy_exam_art"]["metrics"]
    metrics[LONG] = {**metrics["acc"], "value": "NaN"}
    scores["tasks"]["toy_exam_art"]["metrics"] = {LONG: metrics[LONG], "acc": metrics["acc"]}
    (other / "manifest.json").write_text(json.dumps(manifest))
    (other / "results.json").write_text(json.dumps(scores))
    return tmp_path / "results"


@pytest.mark.parametrize("target", ["hub", "lm-eval", "parquet"])
def test_a_long_name_does_not_stop_an_export(
    results: Path, tmp_path: Path, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert mill(["export", str(results), "--to", target, "--out", str(out)]) == 0
    assert all(len(file.name.encode()) < 200 for file in out.rglob("*"))
    assert max(map(len, capsys.readouterr().err.splitlines()), default=0) < 2100
    if target == "lm-eval":
        assert len(list(out.glob("*/results_*.json"))) == 2


def test_two_long_names_are_two_folders(tmp_path: Path) -> None:
    from mill.support.files import short_name

    first, second = (short_name("é" * 1000 + end) for end in "ab")
    assert first != second and short_name("a" * 100) == "a" * 100
    assert max(len(first.encode()), len(second.encode())) <= 109 and first.startswith("é" * 50 + "-")


def test_tables_cut_long_names_and_data_do_not(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mill(["collect", "--output_dir", str(results)]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) < 500
    assert mill(["collect", "--output_dir", str(results), "--columns", "model"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) < 1000
    assert mill(["collect", "--output_dir", str(results), "--format", "csv"]) == 0
    assert {row["model"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))} == {"a", LONG}


def test_csv_has_names_as_they_are_and_a_terminal_gets_no_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_exam(tmp_path / "results", "name=a,accuracy=0.65", "--limit", 3, tasks="toy_exam_art")
    manifest, name = json.loads((run / "manifest.json").read_text()), "=cmd()\x1b]0;x\x07"
    manifest["model"]["name"] = name
    (run / "manifest.json").write_text(json.dumps(manifest))
    capsys.readouterr()
    assert mill(["collect", "--output_dir", str(run.parents[1]), "--format", "csv"]) == 0
    assert next(csv.DictReader(io.StringIO(capsys.readouterr().out)))["model"] == name
    reader, writer = pty.openpty()
    with os.fdopen(writer, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        assert mill(["collect", "--output_dir", str(run.parents[1]), "--format", "csv"]) == 0
        shown = os.read(reader, 100_000)
    os.close(reader)
    assert b"=cmd()\\x1b]0;x\\x07" in shown and b"\x1b" not in shown and b"\x07" not in shown
