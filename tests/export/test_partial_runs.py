"""Scores that are not over all data of all tasks, in tables, frames, plots, trackers and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mill.export.hub import model_card
from mill.export.lm_eval import results, task_names
from mill.export.parquet import write_parquet
from mill.export.run import ExportedRun
from mill.export.tracker import tracked
from mill.report.collect import cells, collect, shown_columns
from mill.report.plot_data import plot_data
from mill.runs.folder import RunFolder
from mill.runs.recorded_run import read_runs
from tests.exam_runs import run_exam

pandas = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def helped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 samples of b with the scores of a."""
    folder = tmp_path_factory.mktemp("helped")
    other = run_exam(folder / "a", "name=a,accuracy=0.6")
    return run_exam(folder / "b", "name=b,accuracy=0.65,changed=0.3", "--sample", 300, "--reuse", other)


@pytest.fixture(scope="module")
def partial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The mean of a benchmark that lacks two of its tasks."""
    run = run_exam(tmp_path_factory.mktemp("partial"), "name=c,accuracy=0.65", "--limit", 10)
    content = json.loads((run / "results.json").read_text())
    content["benchmarks"]["toy_exam"]["missing"] = ["toy_exam_math", "toy_exam_art"]
    (run / "results.json").write_text(json.dumps(content))
    return run


def control_of(run: Path) -> dict[str, Any]:
    """The estimate with the help of a, as it is recorded."""
    mean = json.loads((run / "results.json").read_text())["benchmarks"]["toy_exam"]
    found: dict[str, Any] = mean["control"]["metrics"]["acc"]
    return found


def test_an_estimate_with_the_help_of_another_model_is_a_row(helped: Path, tmp_path: Path) -> None:
    known = control_of(helped)
    (row,) = (row for row in collect(helped) if row["benchmark"] == "toy_exam" and row["control"] and not row["task"])
    assert (row["metric"], row["control"]) == ("acc (with a)", "a")
    assert [row[name] for name in ("value", "low", "high", "n")] == [known[name] for name in ("value", "low", "high", "n")]
    write_parquet([ExportedRun.read(RunFolder(helped))], tmp_path, samples=False)
    scores = pandas.read_parquet(tmp_path / "scores.parquet")
    (value,) = scores[(scores.metric == "acc (with a)") & (scores.task == "")].value
    assert value == known["value"]


def test_a_tracker_has_the_estimate_and_what_was_sampled(helped: Path) -> None:
    entry, known = tracked(ExportedRun.read(RunFolder(helped))), control_of(helped)
    names = ("toy_exam/acc_with_control", "toy_exam/acc_with_control_low", "toy_exam/acc_with_control_high")
    assert [entry.metrics[name] for name in names] == [known["value"], known["low"], known["high"]]
    assert entry.tags["mill.sampled"] == "random 300 of 3000, seed 0" and entry.tags["mill.control"] == "a"


def test_a_plot_has_the_estimate_beside_the_score(helped: Path) -> None:
    (plot,) = plot_data(read_runs(helped)).scores
    assert [score.label for score in plot.scores] == ["b", "b, with a"]
    assert plot.scores[1].estimate.value == control_of(helped)["value"]


def test_a_decision_is_a_tag_and_a_column(tmp_path: Path) -> None:
    run = ExportedRun.read(RunFolder(run_exam(tmp_path / "out", "name=a,accuracy=0.9", "--decide", "acc>0.6")))
    assert tracked(run).tags["mill.decision"] == "toy_exam: acc>0.6 is true"
    write_parquet([run], tmp_path, samples=False)
    for file in ("runs.parquet", "scores.parquet"):
        frame = pandas.read_parquet(tmp_path / file)
        assert set(frame.decision) == {"toy_exam: acc>0.6 is true"}
        assert all(text.startswith("sequential ") and text.endswith(", seed 0") for text in frame.sampled)


def test_the_mean_of_some_tasks_is_marked(partial: Path, tmp_path: Path) -> None:
    rows = collect(partial)
    assert [cells(row, shown_columns(rows))[1] for row in rows if not row["task"]] == ["toy_exam (mean of 1 of 3)"]
    assert [score.label for score in plot_data(read_runs(partial)).scores[0].scores] == ["c (mean of 1 of 3)"]
    run = ExportedRun.read(RunFolder(partial))
    entry = tracked(run)
    assert "toy_exam_mean_of_1_of_3/acc" in entry.metrics and "toy_exam/acc" not in entry.metrics
    assert entry.tags["mill.partial_means"] == "toy_exam (mean of 1 of 3)"
    write_parquet([run], tmp_path, samples=False)
    assert list(pandas.read_parquet(tmp_path / "scores.parquet").mean_of) == ["", "", "", "1 of 3"]


def test_the_mean_of_some_tasks_is_no_group_of_lm_eval_and_not_in_the_card(partial: Path) -> None:
    pytest.importorskip("huggingface_hub")
    run = ExportedRun.read(RunFolder(partial))
    found = results(run, task_names(run))
    assert list(found["results"]) == ["toy_exam_law", "toy_exam_math", "toy_exam_art"]
    assert "groups" not in found and found["group_subtasks"] == {}
    assert "toy_exam_law" in model_card("c", [run]) and "(mean" not in model_card("c", [run])
