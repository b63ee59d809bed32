"""Sequential tests of a claim where some samples failed, and of samples that are scored again."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mill.api.errors import RunError
from mill.api.registry import tasks
from mill.cli.main import run
from mill.plan.sampling import Claim
from mill.runs.adaptive import UNIT, GroupTest, Range, describe_decision, value_range
from mill.store.samples import RunSample
from mill.store.schema import Decision
from tests.toy_exam import SIZES

RIGHT, WRONG, FAILED = (1.0, 1.0), (0.0, 0.0), UNIT
EVERY = 50


def decide(claim: Claim, values: Sequence[Range]) -> Decision:
    """Looks after each 50 samples, until the test is over."""
    test = GroupTest(claim, len(values))
    for start in range(0, len(values), EVERY):
        test.add(values[start : start + EVERY])
        if test.over:
            break
    return test.decision("exam")


def shuffled(right: int, wrong: int, failed: int, seed: int = 0) -> list[Range]:
    values = [RIGHT] * right + [WRONG] * wrong + [FAILED] * failed
    random.Random(seed).shuffle(values)
    return values


@pytest.mark.parametrize("compare", [">", ">=", "<", "<="])
def test_failures_decide_nothing(compare: str) -> None:
    """480 of 600 answered samples are right. Of all 1,000, 0.48 are right or 0.88, by what the failed ones would score."""
    values = shuffled(480, 120, 400)
    decision = decide(Claim("acc", compare, 0.6), values)
    assert decision.outcome == "undecided" and decision.n < 1000
    assert decision.looks[-1].low < 0.48 and decision.looks[-1].high > 0.88
    tested = values[: decision.n]
    assert decision.looks[-1].value == pytest.approx(tested.count(RIGHT) / (tested.count(RIGHT) + tested.count(WRONG)))
    assert f"for any scores of the {decision.failed} failed samples" in describe_decision(decision)


@pytest.mark.parametrize(("bound", "outcome", "above"), [(0.5, "true", True), (0.9, "false", False)])
def test_a_decision_that_no_failure_could_change_stands(bound: float, outcome: str, above: bool) -> None:
    """0.7 to 0.75 of all samples are right."""
    decision = decide(Claim("acc", ">", bound), shuffled(700, 250, 50))
    assert decision.outcome == outcome and 0 < decision.failed < decision.n < 1000
    assert decision.reached is not None and (decision.reached <= 0.7 if above else decision.reached >= 0.75)
    assert describe_decision(decision).endswith(f"; {decision.failed} samples failed")


def test_on_all_samples_the_ends_are_those_of_counting_failures_as_wrong_or_right() -> None:
    """15 of 100 samples are right and 5 failed; at the bound itself no test decides."""
    decision = decide(Claim("acc", ">", 0.15), shuffled(15, 80, 5, seed=1))
    assert (decision.outcome, decision.n, decision.failed) == ("undecided", 100, 5)
    last = decision.looks[-1]
    assert (last.low, last.value, last.high) == pytest.approx((0.15, 15 / 95, 0.2))


@pytest.mark.parametrize(("lost", "compare", "counted_as"), [(RIGHT, ">=", 0.0), (WRONG, "<=", 1.0)])
def test_wrong_decisions_are_rare_whichever_answers_fail(lost: Range, compare: str, counted_as: float) -> None:
    """150 of 300 samples are right, so the claim is true. 40 % of the right answers fail, or of the wrong ones: a test that
    counts failures as wrong, or as right, is nearly always wrong."""
    wrong = counted_wrong = 0
    for seed in range(60):
        drawn = random.Random(-seed - 1)
        values = [FAILED if one == lost and drawn.random() < 0.4 else one for one in shuffled(150, 150, 0, seed)]
        wrong += decide(Claim("acc", compare, 0.5), values).outcome == "false"
        counted = [(counted_as, counted_as) if one == FAILED else one for one in values]
        counted_wrong += decide(Claim("acc", compare, 0.5), counted).outcome == "false"
    assert wrong / 60 <= 0.05
    assert counted_wrong / 60 > 0.8


def evaluate(folder: Path, *options: str, tasks: str = "toy_exam") -> Path:
    """The folder of the run."""
    assert run(["eval", "exam[name=a,accuracy=0.65]", tasks, "--output_dir", str(folder), *options]) in (0, 1)
    (manifest,) = folder.glob("*/*/manifest.json")
    return manifest.parent


def results(folder: Path) -> Any:
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize(
    "commands",
    [
        [["--decide", "acc>0.6"]],
        [["--decide", "acc>0.6"], ["--decide", "acc>0.3", "--alpha", "0.01"]],
        [["--decide", "acc<0.3"], ["--sample", "1500"]],
        [["--decide", "acc>0.6"], []],
    ],
    ids=["a decision", "two decisions", "then a larger sample", "then all samples"],
)
def test_a_run_scored_again_keeps_its_decisions_and_intervals(tmp_path: Path, commands: list[list[str]]) -> None:
    for options in commands:
        folder = evaluate(tmp_path, *options)
    before = results(folder)
    assert all(decision["looks"] for decision in before["decisions"].values())
    assert run(["score", str(folder)]) == 0
    assert results(folder) == before


def test_failures_of_a_decision_stay_when_it_is_scored_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAM_FAILS", "3")
    folder = evaluate(tmp_path, "--decide", "acc>0.5")
    before = results(folder)
    assert next(iter(before["decisions"].values()))["failed"] > 20
    assert run(["score", str(folder)]) == 1
    assert results(folder) == before


def test_a_claim_is_decided_again_by_scores_that_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With right and wrong answers exchanged the interval is mirrored, and what was more than 0.5 is less."""
    folder = evaluate(tmp_path, "--decide", "acc>0.5")
    before = results(folder)
    for name in SIZES:  # whichever class has the name: another test may have loaded the file again
        exchanged = lambda self, sample, responses: {"acc": float(responses[0].text != "right")}  # noqa: E731
        monkeypatch.setattr(tasks.get(name), "score", exchanged)
    assert run(["score", str(folder)]) == 0
    after = results(folder)
    (decided,), (again,) = before["decisions"].values(), after["decisions"].values()
    assert (decided["outcome"], again["outcome"]) == ("true", "false")
    assert [look["n"] for look in again["looks"]] == [look["n"] for look in decided["looks"]]
    old, new = (found["benchmarks"]["toy_exam"]["metrics"]["acc"] for found in (before, after))
    assert (new["low"], new["high"]) == pytest.approx((1 - old["high"], 1 - old["low"]))
    assert "toy_exam: acc>0.5 is false" in capsys.readouterr().out


def test_a_row_without_an_answer_is_refused_and_no_failure() -> None:
    """It would never have a score, so that the claim could never be decided."""
    scored = SimpleNamespace(error=None, values={"exact_match": [None]}, sample=SimpleNamespace(id=3))
    with pytest.raises(RunError, match="--decide needs a score of every sample: 3 has none of exact_match"):
        value_range(cast(RunSample, scored), "exact_match")
