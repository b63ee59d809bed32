"""Scores that are not over all data of all tasks, in tables, frames, plots, trackers and files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mill.export.hub import model_card
from mill.export.lm_eval import results, task_names
from mill.export.parquet import write_parquet
from mill.export.run import ExportedRun
from mill.export.tracker import tracked
from mill.report.collect import cells, collect, shown_columns
from mill.report.plots import plotted_runs
from mill.score.recorded_run import read_runs
from mill.store.folder import RunFolder
from tests.exam_runs import run_exam
from tests.export.made_runs import mill, only_run

pandas = pytest.importorskip("pandas")
EXAM = Path(__file__).parents[1] / "toy_exam.py"


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 samples of 3,000."""
    return run_exam(tmp_path_factory.mktemp("sampled"), "name=b,accuracy=0.65", "--sample", 300)


@pytest.fixture(scope="module")
def partial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The mean of a benchmark that lacks two of its tasks."""
    run = run_exam(tmp_path_factory.mktemp("partial"), "name=c,accuracy=0.65", "--limit", 10)
    content = json.loads((run / "results.json").read_text())
    content["benchmarks"]["toy_exam"]["missing"] = ["toy_exam_math", "toy_exam_art"]
    (run / "results.json").write_text(json.dumps(content))
    return run


def test_a_decision_is_a_tag_and_a_column(tmp_path: Path) -> None:
    run = ExportedRun.read(RunFolder(run_exam(tmp_path / "out", "name=a,accuracy=0.9", "--decide", "acc>0.6")))
    assert tracked(run).tags["mill.decision"] == "toy_exam: acc>0.6 is true"
    write_parquet([run], tmp_path, samples=False)
    for file in ("runs.parquet", "scores.parquet"):
        frame = pandas.read_parquet(tmp_path / file)
        assert set(frame.decision) == {"toy_exam: acc>0.6 is true"}
        assert all(re.fullmatch(r"random, until decided: \d+ of \d+, seed 0", text) for text in frame.sampled)
    assert tracked(run).tags["mill.sampled"] in set(pandas.read_parquet(tmp_path / "runs.parquet").sampled)


STRATIFIED = "random sample (seed 0, stratified by 3 categories): the intervals are about the score of the whole test set"


def test_a_random_sample_is_no_limit_of_lm_eval(sampled: Path, tmp_path: Path) -> None:
    """A limit would be the first rows of every task."""
    run = ExportedRun.read(RunFolder(sampled))
    config = results(run, task_names(run))["config"]
    assert config["limit"] is None and config["mill_sampled"] == f"random 300 of 3000, seed 0; {STRATIFIED}"
    limited = ExportedRun.read(RunFolder(run_exam(tmp_path / "limited", "name=c,accuracy=0.65", "--limit", 400)))
    config = results(limited, task_names(limited))["config"]
    assert config["limit"] == 400  # art has 300, and all of them ran
    assert config["mill_sampled"].startswith("first 800 of 2700; first 400 rows, not a random sample")
    part = ExportedRun.read(RunFolder(run_exam(tmp_path / "part", "name=c,accuracy=0.65", "--limit", "0.1")))
    assert results(part, task_names(part))["config"]["limit"] is None  # another count of each task


def test_samples_and_seconds_of_a_stopped_run_are_those_that_are_done(tmp_path: Path) -> None:
    options = ["--task_paths", str(EXAM), "--output_dir", str(tmp_path / "out"), "--sample", "1000"]
    for budget in (1200, 2400):
        done = mill("eval", "exam[name=a,accuracy=0.65]", "toy_exam", *options, "--max_tokens_total", str(budget))
        assert done.returncode == 4, done.stderr
    run = only_run(tmp_path / "out")
    entry = tracked(run)
    parts = [entry.metrics[f"{task}/samples"] for task in run.tasks]
    assert sum(parts) == entry.metrics["toy_exam/samples"] == entry.metrics["run/samples"] == 600
    assert entry.metrics["run/unanswered"] == 400
    (spent,) = re.findall(r"spent: 2,400 tokens and ([\d.]+) s in all sessions", done.stdout)
    assert entry.metrics["run/seconds"] == pytest.approx(float(spent), abs=0.1)
    assert len(run.sessions) == 2 and run.seconds > sum(session.seconds for session in run.sessions)  # also of the scoring
    write_parquet([run], tmp_path, samples=False)
    (row,) = pandas.read_parquet(tmp_path / "runs.parquet").to_dict("records")
    assert (row["samples"], row["unanswered"], row["seconds"]) == (600, 400, run.seconds)


def test_the_mean_of_some_tasks_is_marked(partial: Path, tmp_path: Path) -> None:
    rows = collect(partial)
    assert [cells(row, shown_columns(rows))[1] for row in rows if not row["task"]] == ["toy_exam (mean of 1 of 3)"]
    assert [one.label for one in next(iter(plotted_runs(read_runs(partial)).values()))] == ["c (mean of 1 of 3)"]
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
