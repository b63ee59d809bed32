"""`mill diff-scores`: values that were worked out by hand, and what differs beside the scores."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import pytest

from mill.cli.main import run
from mill.report.score_diff import diff_scores, sentence
from tests.exam_runs import run_exam
from tests.fixed_answers import FixedTask, run_answers, run_right

stats = pytest.importorskip("scipy.stats")
proportions_ztest = pytest.importorskip("statsmodels.stats.proportion").proportions_ztest
TOY = str(Path(__file__).parents[1] / "toy.py")


def printed(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[str, str]:
    capsys.readouterr()
    assert run(["diff-scores", *map(str, argv)]) == 0
    found = capsys.readouterr()
    return found.out, found.err


def test_two_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """8 of 40 answers became wrong and 1 right: p of 9 changes with 1 on the smaller side is 2 * (1 + 9) / 2^9."""
    a = run_right(tmp_path, "a", range(36))
    b = run_right(tmp_path, "b", [*range(8, 36), 39])
    (row,) = json.loads(printed(capsys, a, b, "--format", "json")[0])
    assert (row["task"], row["metric"], row["value_a"], row["value_b"]) == ("quiz", "exact_match", 0.9, 29 / 40)
    assert row["difference"] == pytest.approx(-7 / 40) and row["pairs"] == 40
    assert row["p"] == row["p_corrected"] == pytest.approx(20 / 512) == stats.binomtest(1, 9).pvalue
    assert row["change"] == "worse" and row["low"] < -7 / 40 < row["high"] < 0
    out, err = printed(capsys, a, b)
    assert out.splitlines()[2].split() == [
        "quiz", "exact_match", "0.9000", "0.7250", "-0.1750", "*", f"{row['low']:.3f}", "to", f"{row['high']:.3f}",
        "0.039", "0.039", "40", "worse",
    ]  # fmt: skip
    assert out.splitlines()[-1] == (
        "Of 1 score, B is significantly worse on 1 (quiz exact_match) (at 5 %, corrected by Holm's method)."
    )
    assert err == ""


def test_holms_correction_is_over_all_rows(tmp_path: Path) -> None:
    """6 losses have p = 2 / 2^6 alone; as the smallest of two it is doubled."""
    for task in ("quiz", "riddle"):
        a = run_right(tmp_path, "a", range(40), task=task)
        b = run_right(tmp_path, "b", range(34 if task == "quiz" else 39), task=task)
    found = diff_scores(a, b)
    assert [row.found.difference.p for row in found.rows] == [pytest.approx(2 / 64), 1.0]
    assert [row.p_corrected for row in found.rows] == [pytest.approx(4 / 64), 1.0]
    assert sentence(found).startswith("No difference between A and B is significant on 2 scores")


def test_samples_are_paired_by_data_and_the_others_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = run_right(tmp_path, "a", range(20), n=40)
    b = run_right(tmp_path, "b", range(5), n=10)
    out, err = printed(capsys, a, b, "--format", "json")
    (row,) = json.loads(out)
    assert (row["pairs"], row["value_a"], row["paired_a"], row["paired_b"]) == (10, 0.5, 1.0, 0.5)
    assert row["difference"] == pytest.approx(-0.5)
    assert "quiz: 10 samples are in both runs, 30 in one only" in err and "quiz: the data differ" in err


def test_runs_without_common_samples_are_compared_as_estimates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Others(FixedTask):
        def samples(self) -> Any:
            return [one.__class__(one.id, {"question": one.doc["question"], "more": 1}) for one in super().samples()]

        def requests(self, sample: Any, settings: Any) -> Any:
            (request,) = super().requests(sample, settings)
            return [request.__class__(request.kind, request.context, options={**request.options, "max_gen_toks": 7})]

    a = run_right(tmp_path, "a", range(36))
    b = run_answers(tmp_path, "b", Others("quiz", 20), ["right" if index < 9 else "wrong" for index in range(20)])
    out, err = printed(capsys, a, b, "--format", "json")
    (row,) = json.loads(out)
    assert row["pairs"] == 0 and row["p"] == pytest.approx(proportions_ztest([36, 9], [40, 20])[1])
    assert "no samples in common" in err
    assert "unpaired" in printed(capsys, a, b)[0]


def test_a_benchmark_is_the_mean_of_its_tasks(tmp_path: Path) -> None:
    """Equal weights: (-0.2 - 0.1) / 2."""
    paths = {}
    for model, lost in (("a", (0, 0)), ("b", (8, 4))):
        for task, count in zip(("quiz", "riddle"), lost, strict=True):
            paths[model] = run_right(tmp_path, model, range(40 - count), task=task)
        file = paths[model] / "results.json"
        data = json.loads(file.read_text())
        parts = [data["tasks"][task]["metrics"]["exact_match"] for task in ("quiz", "riddle")]
        value = sum(part["value"] for part in parts) / 2
        mean = {"value": value, "stderr": 0.02, "low": value - 0.05, "high": min(1.0, value + 0.05), "n": 80}
        data["benchmarks"] = {
            "pair": {
                "benchmark": "pair", "tasks": ["quiz", "riddle"], "n": 80, "total": 80, "errors": 0,
                "metrics": {"exact_match": mean},
            }
        }  # fmt: skip
        file.write_text(json.dumps(data))
    rows = {row.name: row for row in diff_scores(paths["a"], paths["b"]).rows}
    found = rows["pair"].found
    assert found.pairs == 80 and found.difference.estimate.value == pytest.approx(-0.15)
    stderr = math.hypot(*(rows[task].found.difference.estimate.stderr or 0.0 for task in ("quiz", "riddle"))) / 2
    assert found.difference.estimate.stderr == pytest.approx(stderr)
    assert found.difference.p == pytest.approx(2 * stats.t.sf(0.15 / stderr, 78))


def test_failed_samples_count_as_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["toy_gen", "--task_paths", TOY, "--quiet", "--output_dir", str(tmp_path)]
    assert run(["eval", "toy[path=a]", *argv]) == 0
    monkeypatch.setenv("TOY_FAILS", "toy_gen 3")
    assert run(["eval", "toy[path=b,scale=2]", *argv]) == 1
    a, b = sorted(tmp_path.glob("*/default"))
    out, err = printed(capsys, a, b, "--format", "json")
    (row,) = json.loads(out)
    assert (row["pairs"], row["n_a"], row["n_b"]) == (40, 40, 29)  # 3 and 30 to 39
    assert row["paired_b"] == pytest.approx(row["value_b"] * 29 / 40)
    assert "toy_gen: 0 of 40 samples failed in A and 11 in B; they count as wrong" in err
    assert "in one run only" not in err


def test_settings_versions_shots_and_task_versions_are_warned_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = run_right(tmp_path, "a", range(4), n=5)
    b = run_right(tmp_path, "b", range(4), n=5, gen_kwargs={"max_gen_toks": 9})
    manifest = json.loads((b / "manifest.json").read_text())
    manifest["versions"] |= {"torch": "9.9", "mill": "0.1"}
    (b / "manifest.json").write_text(json.dumps(manifest))
    results = json.loads((b / "results.json").read_text())
    results["tasks"]["quiz"] |= {"version": 7, "n_shots": 3}
    (b / "results.json").write_text(json.dumps(results))
    err = printed(capsys, a, b)[1]
    assert "warning: settings differ: max_gen_toks none and 9\n" in err
    assert "versions differ: mill " in err and "torch " in err and " and 9.9" in err
    assert "quiz: versions 1 and 7 of the task" in err and "quiz: 0 and 3 shots" in err


def test_two_output_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs belong together by model and settings."""
    before, after = tmp_path / "before", tmp_path / "after"
    for folder, right in ((before, 40), (after, 20)):
        run_right(folder, "one", range(right))
        run_right(folder, "two", range(40))
    run_right(after, "three", range(40))
    out, _ = printed(capsys, before, after, "--format", "csv")
    rows = {row["run"]: row for row in csv.DictReader(io.StringIO(out))}
    assert {name: row["change"] for name, row in rows.items()} == {"one (default)": "worse", "two (default)": ""}
    assert "Only in B: three (default): quiz." in printed(capsys, before, after)[0]


def test_bad_input_gets_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = run_right(tmp_path / "x", "a", range(4), n=5)
    other = run_right(tmp_path / "y", "b", range(4), n=5, task="riddle")
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "manifest.json").write_text("{")
    for argv, message in (
        ([a, a], "are one folder"),
        ([a, tmp_path / "none"], "does not exist"),
        ([a, tmp_path / "empty"], "no run with scores"),
        ([a, tmp_path / "damaged"], "manifest.json"),
        ([a, other], "no score in common"),
        ([a], "Missing argument"),
        ([a, other, "--format", "parquet"], "give --out"),
    ):
        capsys.readouterr()
        assert run(["diff-scores", *map(str, argv)]) == 2
        err = capsys.readouterr().err
        assert message in err and err.count("\n") == 1, argv


def test_a_random_sample_is_paired_with_the_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same model, so that no sample differs; the recorded scores do, since one is of other samples."""
    full = run_exam(tmp_path / "full", "name=a,accuracy=0.65")
    part = run_exam(tmp_path / "part", "name=a,accuracy=0.65", "--sample", 300)
    rows = {row["task"]: row for row in json.loads(printed(capsys, full, part, "--format", "json")[0])}
    assert {name: (row["difference"], row["p"], row["pairs"]) for name, row in rows.items()} == {
        "toy_exam_law": (0, 1, 200),
        "toy_exam_math": (0, 1, 70),
        "toy_exam_art": (0, 1, 30),
        "toy_exam": (0, 1, 300),
    }
    assert rows["toy_exam"]["value_a"] == pytest.approx(1852 / 3000) != rows["toy_exam"]["value_b"]
    assert rows["toy_exam"]["paired_a"] == rows["toy_exam"]["paired_b"] == pytest.approx(188 / 300)
    out, _ = printed(capsys, full, part)
    assert next(line for line in out.splitlines() if line.startswith("toy_exam ")).split()[2:5] == [
        "0.6267",
        "0.6267",
        "0.0000",
    ]
    assert "A and B are over the samples that both runs have" in out


def test_two_stratified_samples_are_paired(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Model b knows what a does not where the difficulty is from 0.5 to 0.65, and is worse on no sample."""
    a = run_exam(tmp_path / "a", "name=a,accuracy=0.5", "--sample", 300)
    b = run_exam(tmp_path / "b", "name=b,accuracy=0.65", "--sample", 300)
    (row,) = (row for row in json.loads(printed(capsys, a, b, "--format", "json")[0]) if row["task"] == "toy_exam")
    assert (row["pairs"], row["change"]) == (300, "better")
    assert row["difference"] == pytest.approx(row["paired_b"] - row["paired_a"], abs=1e-12)
