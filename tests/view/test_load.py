"""`mill.load`: result folders as data frames, equal to what `mill collect` and the files have."""

from __future__ import annotations

from pathlib import Path

import pytest

import mill
from mill.api.errors import MillError
from mill.report.collect import collect
from tests.view.conftest import evaluate, lines_of


def test_scores_are_those_of_collect(results: Path) -> None:
    loaded = mill.load(results)
    rows = {(row["run"], row["task"], row["metric"]): row["value"] for row in collect(results)}
    found = {(row.path, row.task, row.metric): row.value for row in loaded.scores.itertuples()}
    assert found == pytest.approx(rows)


def test_samples_are_the_lines_of_the_files(results: Path) -> None:
    loaded = mill.load(str(results))
    frame = loaded.samples("one", "toy_gen")
    lines = lines_of(results, "one", "toy_gen")
    assert list(frame["id"]) == [line["id"] for line in lines]
    assert list(frame["response"]) == [line["response"] for line in lines]
    for status, value in (("wrong", 0.0), ("right", 1.0)):
        wanted = [line["id"] for line in lines if line["exact_match"] == value]
        assert wanted and list(loaded.samples("one", "toy_gen", status=status)["id"]) == wanted
    failed = [line["id"] for line in lines_of(results, "two", "toy_gen") if line["error"]]
    assert failed and list(loaded.samples("two", "toy_gen", status="failed")["id"]) == failed
    assert len(loaded.samples("one", limit=5)) == 5
    assert list(loaded.samples("one", "toy_gen", search="toy_gen 17")["id"]) == ["17"]


def test_two_runs_are_paired(results: Path) -> None:
    loaded = mill.load(results)
    frame = loaded.compare("one", "two", "toy_gen")
    sides = [{line["id"]: line for line in lines_of(results, model, "toy_gen")} for model in ("one", "two")]
    for row in frame.itertuples():
        assert row.value_a == sides[0][row.id]["exact_match"]
        assert (row.status_b == "failed") == (sides[1][row.id]["error"] is not None)
    significance = loaded.significance("one", "two").set_index("task")
    assert significance.loc["toy_gen", "regression"] == (frame["cell"] == "regression").sum()
    tested = significance.dropna(subset=["p"])
    assert set(tested.index) == {"toy_gen", "toy_choice", "toy_text"}
    assert (tested["p_corrected"] >= tested["p"]).all()


def test_runs_are_named_by_the_start_of_their_label(results: Path) -> None:
    loaded = mill.load(results)
    assert sorted(loaded.runs["model"]) == ["one", "two"]
    assert len(loaded.samples("tw", "toy_gen")) == 40
    with pytest.raises(MillError, match="unknown run"):
        loaded.samples("three")
    assert "2 runs" in repr(loaded)


def test_a_name_of_several_runs_is_refused(results: Path, tmp_path: Path) -> None:
    evaluate(tmp_path, "toy[path=one]", "toy_gen")
    evaluate(tmp_path, "toy[path=one]", "toy_gen", "--seed", "3")
    loaded = mill.load(tmp_path)
    with pytest.raises(MillError, match="2 runs are called 'on'"):
        loaded.samples("on")
    assert len(loaded.samples("one")) == 40  # exactly the label of one of them
    assert len(loaded.samples(next(name for name in loaded.runs["run"] if "seed" in name))) == 40


def test_columns_have_types_that_do_not_depend_on_the_rows(results: Path, tmp_path: Path) -> None:
    loaded, empty = mill.load(results), mill.load(tmp_path)
    for name in ("runs", "scores"):
        types = getattr(loaded, name).dtypes.astype(str)
        assert types.equals(getattr(empty, name).dtypes.astype(str)), name
    scores = loaded.scores
    assert {str(scores[name].dtype) for name in ("value", "stderr", "low", "high")} == {"float64"}
    assert {str(scores[name].dtype) for name in ("n_shots", "n", "failed", "total")} == {"Int64"}
    assert str(loaded.runs["started"].dtype) == "datetime64[us, UTC]"
    two = loaded.runs.set_index("model").loc["two"]
    failed = sum(line["error"] is not None for line in lines_of(results, "two", "toy_gen"))
    assert (two["samples"], two["failed"]) == (120, failed) and failed > 0
    assert len(empty.samples()) == 0 and {"task", "id", "prompt_tokens"} <= set(empty.samples())


def test_samples_of_all_runs(results: Path) -> None:
    loaded = mill.load(results)
    frame = loaded.samples(task="toy_gen")
    assert list(frame.groupby("model").size()) == [40, 40]
    assert str(frame["exact_match"].dtype) == "float64" and str(frame["prompt_tokens"].dtype) == "Int64"
    failed = frame[frame["error"].notna()]
    assert len(failed) and failed["exact_match"].isna().all() and failed["prompt_tokens"].isna().all()
    every = loaded.samples()
    assert len(every) == 4 * 40 + 3 * 40
    choices = every[every["task"] == "toy_choice"]
    assert str(every["correct"].dtype) == "boolean" and choices["correct"].notna().all()
    assert every[every["task"] == "toy_gen"]["correct"].isna().all()
    assert len(loaded.samples(limit=50)) == 50
    with pytest.raises(MillError, match="unknown task"):
        loaded.samples(task="toy_genn")
