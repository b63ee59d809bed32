"""`mill compare --runs`, `mill diff-scores` and `mill view` say the same of two runs: also of failed samples and repeats."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from scipy import stats  # type: ignore[import-untyped]

from mill.checks.result import read_check
from mill.cli.main import run
from mill.report.score_diff import diff_scores
from mill.store.sample_row import SampleRow, iterate_rows
from mill.view.compare import compare_summary, read_pair_filter
from mill.view.index import ResultsIndex
from tests.view.conftest import uid_of_model

TOY = str(Path(__file__).parents[1] / "toy.py")


@pytest.fixture(params=[1, 3])
def runs(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The second run fails on 11 of 40 samples."""
    for name in [name for name in sys.modules if name.startswith("mill_file_")]:
        del sys.modules[name]
    more = ["--repeats", str(request.param)] if request.param > 1 else []
    argv = ["toy_gen", "--task_paths", TOY, "--quiet", "--output_dir", str(tmp_path), *more]
    assert run(["eval", "toy[path=a]", *argv]) == 0
    monkeypatch.setenv("TOY_FAILS", "toy_gen 3")
    assert run(["eval", "toy[path=b,scale=2]", *argv]) == 1
    a, b = (file.parent for file in sorted(tmp_path.glob("*/*/manifest.json")))
    return a, b


def values(folder: Path) -> list[float]:
    def value(row: SampleRow) -> float:
        found = row.number("exact_match")
        return found if isinstance(found, float) else 0.0

    return [value(row) for row in iterate_rows(folder / "samples" / "toy_gen.jsonl")]


def test_the_same_two_runs_have_one_difference(runs: tuple[Path, Path], tmp_path: Path) -> None:
    a, b = map(values, runs)
    losses = [first - second for first, second in zip(a, b, strict=True)]
    loss = pytest.approx(sum(losses) / 40)
    worse, better = sum(one > 0 for one in losses), sum(one < 0 for one in losses)
    repeated = not {*a, *b} <= {0.0, 1.0}
    p = stats.ttest_1samp(losses, 0).pvalue if repeated else stats.binomtest(worse, worse + better).pvalue

    argv = ["--task_paths", TOY, "--output_dir", str(tmp_path / "out"), "--quiet"]
    assert run(["compare", "--runs", *map(str, runs), *argv]) == 1, "samples failed"
    (check,) = (tmp_path / "out").rglob("check.json")
    (variant,) = read_check(check.parent).variants
    assert variant.metrics["acc_drop"].value == loss and variant.p_values["acc_drop"] == pytest.approx(p)
    assert (variant.counts["samples"], variant.counts["failed"]) == (40, 11)
    row = diff_scores(*runs).rows[0]
    assert -row.found.difference.estimate.value == loss and row.found.difference.p == pytest.approx(p)
    index = ResultsIndex(tmp_path, cache=tmp_path / "index")
    index.sync()
    found = compare_summary(index, read_pair_filter({"a": uid_of_model(index, "a"), "b": uid_of_model(index, "b")}))
    index.close()
    lost = found["scores"][2] if repeated else found["lost"]
    assert lost["value"] == loss and found["p"] == pytest.approx(p)
    interval = pytest.approx([variant.metrics["acc_drop"].low, variant.metrics["acc_drop"].high])
    assert [lost["low"], lost["high"]] == interval
    assert [-(row.found.difference.estimate.high or 0), -(row.found.difference.estimate.low or 0)] == interval
