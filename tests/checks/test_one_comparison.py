"""`mill compare --runs`, `mill diff-scores` and `mill view` say the same of two runs: also of failed samples and repeats."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from scipy import stats  # type: ignore[import-untyped]

from mill.api.registry import register_task
from mill.api.response import Response
from mill.api.task import Sample, Value
from mill.checks.compare import compare_runs
from mill.checks.gate import BROKEN, INCONCLUSIVE, KEPT, judge, parse_rules
from mill.checks.result import read_check
from mill.cli.main import run
from mill.report.score_diff import diff_scores
from mill.store.sample_row import SampleRow, iterate_rows
from mill.view.compare import compare_summary, read_pair_filter
from mill.view.index import ResultsIndex
from tests.fixed_answers import FixedTask, run_answers
from tests.view.conftest import uid_of_model

TOY = str(Path(__file__).parents[1] / "toy.py")


@pytest.fixture(params=[1, 3])
def runs(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The second run fails on 11 of 40 samples."""
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
    spread = max(losses) - min(losses)
    p = (
        stats.ttest_1samp([*losses, -spread, spread], 0).pvalue
        if repeated
        else stats.binomtest(worse, worse + better).pvalue
    )

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


class OneMetric(FixedTask):
    """The name of the task is that of its metric."""

    @property
    def metrics(self) -> Mapping[str, str]:  # type: ignore[override]
        return {self.name: "mean"}

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        return {self.name: super().score(sample, responses)["exact_match"]}


register_task("wer", "em", "oddness")(lambda name: OneMetric(name, 40))


def compared(folder: Path, metric: str, first: Sequence[Any], second: Sequence[Any]) -> tuple[str, str, str]:
    """The verdict, the outcome of a requirement on the loss, and what `diff-scores` says."""
    a, b = (run_answers(folder, name, OneMetric(metric, 40), values) for name, values in (("a", first), ("b", second)))
    check = compare_runs(a, b)
    (variant,) = check.variants
    name = "score_drop" if {"score_drop"} & {*variant.metrics, *variant.inconclusive} else "acc_drop"
    (outcome,) = judge(check, parse_rules(None, f"{name}<0.01"))
    (row,) = diff_scores(a, b).rows
    assert (name in variant.inconclusive) == (name not in variant.metrics)
    return variant.verdict, outcome.status, "NaN" if math.isnan(row.found.difference.estimate.value) else row.change


LOW, HIGH = ([f"{value + 0.01 * (index % 5):.2f}" for index in range(40)] for value in (0.09, 0.3))


@pytest.mark.parametrize(
    ("metric", "first", "second", "verdict", "status", "change"),
    [
        ("wer", LOW, HIGH, "worse", BROKEN, "worse"),
        ("wer", HIGH, LOW, "better", KEPT, "better"),
        ("em", HIGH, LOW, "worse", BROKEN, "worse"),
        ("oddness", LOW, HIGH, "different", INCONCLUSIVE, "different"),
        ("wer", ["0"] * 40, ["1"] * 20 + ["0"] * 20, "worse", BROKEN, "worse"),
        ("em", ["1"] * 40, [None] * 40, "inconclusive", INCONCLUSIVE, "NaN"),
        ("em", ["1"] * 40, [None] * 20 + ["1"] * 20, "worse", BROKEN, "worse"),
        ("wer", ["0"] * 40, [None] * 20 + ["0"] * 20, "worse", BROKEN, "worse"),
    ],
)
def test_a_loss_is_a_loss_by_the_direction_of_its_metric(
    tmp_path: Path, metric: str, first: list[Any], second: list[Any], verdict: str, status: str, change: str
) -> None:
    """Where the direction is not known, or one side has no value at all, there is no verdict and no gate that passes."""
    found = compared(tmp_path, metric, first, second)
    assert found[0].startswith(verdict) and found[1:] == (status, change), found
