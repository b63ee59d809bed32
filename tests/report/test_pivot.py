"""Pivots of `mill collect`: which scores are bold, and that every format has the same ones."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from mill.cli.main import run
from mill.report.pivot import Pivot, pivot, scores_of
from mill.score.recorded_run import read_runs
from tests.exam_runs import run_exam
from tests.fixed_answers import FixedTask, FixedText, run_answers, run_right

HOSTILE = r"</text><script>window.hacked=1</script> $\$ 100% a_b & {x} ~^ | **b** `c` \input{/etc/passwd} -- [2cm] *"


def table_of(folder: Path, *columns: str) -> Pivot:
    return pivot(scores_of(read_runs(folder)), columns)


def marked(folder: Path, *columns: str) -> list[str]:
    """The columns with a bold cell."""
    return sorted(", ".join(column) for _, column in table_of(folder, *(columns or ("model",))).best)


def printed(capsys: pytest.CaptureFixture[str], folder: Path, *options: str) -> str:
    capsys.readouterr()
    assert run(["collect", "--output_dir", str(folder), *options]) == 0
    return capsys.readouterr().out


def test_scores_that_are_not_significantly_worse_are_bold(tmp_path: Path) -> None:
    """McNemar: 10 lost of 40 has p = 2 / 2^10 = 0.002, 5 lost has p = 2 / 2^5 = 0.0625."""
    run_right(tmp_path, "best", range(40))
    run_right(tmp_path, "close", range(35))
    run_right(tmp_path, "worse", range(30))
    assert marked(tmp_path) == ["best", "close"]


def test_p_values_are_corrected_over_the_columns(tmp_path: Path) -> None:
    """6 lost have p = 2 / 2^6 = 0.031; of two such models the smallest corrected p is 0.0625."""
    run_right(tmp_path, "best", range(40))
    run_right(tmp_path, "b", range(34))
    assert marked(tmp_path) == ["best"]
    run_right(tmp_path, "c", range(6, 40))
    assert marked(tmp_path) == ["b", "best", "c"]


def test_the_test_is_paired_where_both_runs_have_the_same_samples(tmp_path: Path) -> None:
    """6 of 36 right answers lost: McNemar's test has p = 2 / 2^6 = 0.031, the z-test of 36/40 and 30/41 has p = 0.051."""
    run_right(tmp_path, "best", range(36))
    run_right(tmp_path, "b", range(30))
    assert marked(tmp_path) == ["best"]
    other = tmp_path / "other"
    run_right(other, "best", range(36))
    run_right(other, "b", range(30), n=41)  # one sample more: no longer the same
    assert marked(other) == ["b", "best"]


def test_lower_perplexity_is_better(tmp_path: Path) -> None:
    texts = FixedText("prose", 30)
    run_answers(tmp_path, "low", texts, [-20.0 - index % 7 for index in range(30)])
    run_answers(tmp_path, "high", texts, [-21.0 - index % 7 + 0.1 * (index % 2) for index in range(30)])
    assert marked(tmp_path) == ["low"]


def test_nothing_is_bold_where_the_direction_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Counted(FixedTask):
        metrics = {"exact_match": "mean", "my_own": "mean"}

        def score(self, sample: Any, responses: Any) -> Any:
            return {**super().score(sample, responses), "my_own": float(sample.id)}

    for name in "ab":
        run_answers(tmp_path, name, Counted("quiz", 10), ["right"] * 10)
    table = table_of(tmp_path, "model")
    assert {row[-1] for row, _ in table.best} == {"exact_match"}
    (line,) = [line for line in printed(capsys, tmp_path, "--columns", "model").splitlines() if "my_own" in line]
    assert "*" not in line


def test_rows_of_a_pivot_by_task_are_compared_by_column(tmp_path: Path) -> None:
    for task in ("quiz", "riddle"):
        run_right(tmp_path, "a", range(40), task=task)
        run_right(tmp_path, "b", range(20), task=task)
    table = table_of(tmp_path, "task")
    assert table.keys == ["model", "metric"]
    assert sorted(table.best) == [(("a", "exact_match"), ("quiz",)), (("a", "exact_match"), ("riddle",))]
    assert list(table_of(tmp_path, "task", "metric").columns) == [("quiz", "exact_match"), ("riddle", "exact_match")]


def test_settings_can_be_columns(tmp_path: Path) -> None:
    run_right(tmp_path, "a", range(40))
    run_right(tmp_path, "a", range(20), gen_kwargs={"max_gen_toks": 9})
    table = table_of(tmp_path, "settings")
    assert table.keys == ["task", "metric"] and [key[0].partition("-")[0] for key in table.columns] == [
        "default",
        "max_gen_toks=9",
    ]
    assert [column[0] for _, column in table.best] == ["default"]
    rows = table_of(tmp_path, "model").rows
    assert len(rows) == 2  # other settings are another row


def test_a_damaged_samples_file_makes_the_test_unpaired(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_right(tmp_path, "best", range(36))
    path = run_right(tmp_path, "b", range(30))
    (path / "samples" / "quiz.jsonl").write_text('{"id": []}\n')
    capsys.readouterr()
    assert run(["collect", "--output_dir", str(tmp_path), "--columns", "model"]) == 0
    out, err = capsys.readouterr()
    assert out.count("*") == 2 and err.count("is not a sample") == 1 and "Traceback" not in err


def test_every_format_has_the_same_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import pandas

    run_right(tmp_path, "a", range(40))
    run_right(tmp_path, "b", range(20))
    (row,) = json.loads(printed(capsys, tmp_path, "--columns", "model", "--format", "json"))
    assert (row["task"], row["metric"], row["a"], row["b"]) == ("quiz", "exact_match", 1.0, 0.5)
    assert (row["a best"], row["b best"], row["b n"]) == (True, False, 40)
    (same,) = csv.DictReader(io.StringIO(printed(capsys, tmp_path, "--columns", "model", "--format", "csv")))
    assert same == {name: str(value) for name, value in row.items()}
    file = tmp_path / "scores.parquet"
    assert "1 row written" in printed(capsys, tmp_path, "--columns", "model", "--out", str(file))
    frame = pandas.read_parquet(file)
    assert frame.to_dict("records") == [row]
    assert str(frame["a"].dtype) == "float64" and str(frame["b n"].dtype) == "int64" and str(frame["b best"].dtype) == "bool"
    text = printed(capsys, tmp_path, "--columns", "model", "--format", "md")
    assert text.splitlines()[2] == "| quiz | exact_match | **1.0000 ± 0.0000** | 0.5000 ± 0.0801 |"
    text = printed(capsys, tmp_path, "--columns", "model", "--format", "md", "--uncertainty", "interval")
    assert text.splitlines()[2] == "| quiz | exact_match | **1.0000 (0.912–1.000)** | 0.5000 (0.338–0.662) |"
    plain = printed(capsys, tmp_path, "--columns", "model", "--uncertainty", "none").splitlines()
    assert plain[2].split() == ["quiz", "exact_match", "1.0000", "*", "0.5000"]


def test_names_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_right(tmp_path, HOSTILE, range(3), n=5)
    run_right(tmp_path, "b\x1b[31m\n\\end{tabular}", range(4), n=5)
    texts = {form: printed(capsys, tmp_path, "--columns", "model", "--format", form) for form in ("md", "json", "table")}
    assert "<script>" not in texts["md"] and r"\*\*b\*\*" in texts["md"]
    assert {line.replace(r"\|", "").count("|") for line in texts["md"].splitlines()[:3]} == {5}
    assert HOSTILE in json.loads(texts["json"])[0]
    assert not any("\x1b" in texts[form] for form in ("table", "md"))


def test_a_model_named_like_another_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "a stderr", "task"):
        run_right(tmp_path, name, range(4), n=5)
    (row,) = json.loads(printed(capsys, tmp_path, "--columns", "model", "--format", "json"))
    assert row["task"] == "quiz" and row["a"] == row["a stderr'"] == row["task'"] == 0.8 and 0 < row["a stderr"] < 0.3


BAD_OPTIONS: list[tuple[list[str], str]] = [
    (["--columns", "modle"], "unknown column 'modle'; did you mean model?"),
    (["--columns", ""], "unknown column ''"),
    (["--format", "parquet"], "give --out FILE.parquet"),
    (["--columns", "model", "--format", "parquet"], "give --out FILE.parquet"),
    (["--out", "scores.xlsx"], "endings are .csv"),
    (["--out", "scores.html"], "the format html was removed: write CSV, and pandas"),
    (["--format", "html"], "--format html was removed: write CSV, and pandas"),
    (["--uncertainty", "interval"], "give --columns too"),
    (["--check", "--columns", "model"], "leave out"),
    (["--out", "/proc/none/scores.csv"], "cannot write"),
]


def test_bad_options_get_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_right(tmp_path, "a", range(4), n=5)
    for options, message in BAD_OPTIONS:
        capsys.readouterr()
        assert run(["collect", "--output_dir", str(tmp_path), *options]) == 2, options
        err = capsys.readouterr().err
        assert message in err and err.count("\n") == 1, options


def test_the_best_is_found_over_the_samples_that_both_runs_have(tmp_path: Path) -> None:
    """Two points are not significant for independent samples of 3,000 and 1,500, but over pairs: b is worse on about 30 of
    the samples and better on none."""
    runs = [
        run_exam(tmp_path / "a", "name=a,accuracy=0.65"),
        run_exam(tmp_path / "b", "name=b,accuracy=0.63", "--sample", 1500),
    ]
    table = pivot(scores_of([run for folder in runs for run in read_runs(folder)]), ["model"])
    assert {column[0] for row, column in table.best if row[0] == "toy_exam (mean)"} == {"a"}
