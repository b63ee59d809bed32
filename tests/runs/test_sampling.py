"""Which samples a run takes: random samples, planned precision and early decisions."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mill.api.budget import BudgetLimits
from mill.api.errors import RunError, SpecError
from mill.api.task import RenderSettings
from mill.plan.sampling import Claim, SampleChoice, random_order, read_claim, stratified_order
from mill.report.collect import collect
from mill.report.scores import score_table
from mill.runs.evaluate import Plan
from mill.score.recorded_run import read_runs
from mill.score.run_scores import Outcome
from mill.store.sample_row import NOT_ANSWERED
from mill.store.schema import Look
from mill.tasks.load import load_files, make_task, select
from tests.plans import prepare
from tests.toy_exam import SIZES, TOPICS, is_right

EXAM = Path(__file__).parent.parent / "toy_exam.py"
TOTAL = sum(SIZES.values())


@pytest.fixture(autouse=True)
def exam_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    load_files((str(EXAM),))
    monkeypatch.setenv("EXAM_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


def plan(
    tmp_path: Path,
    tasks: str = "toy_exam",
    *,
    model: str = "exam[name=a,accuracy=0.65]",
    settings: RenderSettings | None = None,
    **choice: Any,
) -> Plan:
    samples = SampleChoice(**choice)
    return prepare(
        model, select(tasks.split(",")), settings or RenderSettings(), output_dir=tmp_path / "out", samples=samples
    )


def run(tmp_path: Path, tasks: str = "toy_exam", **given: Any) -> Outcome:
    return plan(tmp_path, tasks, **given).execute(quiet=True)


def truth(accuracy: float = 0.65, changed: float = 0.0, name: str = "a") -> float:
    """The score of the whole exam, counted by hand."""
    right = [is_right(task, index, accuracy, changed, name) for task, size in SIZES.items() for index in range(size)]
    return sum(right) / TOTAL


def ids(outcome: Outcome) -> set[tuple[str, str]]:
    return {(task, str(one.sample.id)) for task, some in outcome.scored.items() for one in some}


def mean(outcome: Outcome) -> Any:
    return next(one for one in outcome.benchmarks if one.benchmark == "toy_exam")


def test_a_random_sample_has_the_share_of_each_task_and_category(tmp_path: Path) -> None:
    outcome = run(tmp_path, sample=600)
    assert {task.task: task.n for task in outcome.tasks} == pytest.approx({n: s / 5 for n, s in SIZES.items()}, abs=1)
    for task, scored in outcome.scored.items():
        counts = Counter(one.category for one in scored)
        assert set(counts) == set(TOPICS)
        assert max(counts.values()) - min(counts.values()) <= 2, task


def test_a_larger_sample_contains_a_smaller_one_and_computes_the_rest_alone(tmp_path: Path, exam_here: Path) -> None:
    small = run(tmp_path, sample=300)
    large = run(tmp_path, sample=0.25)
    assert ids(small) < ids(large)
    assert len(exam_here.read_text().splitlines()) == 750 == len(ids(large))


def test_the_interval_is_about_the_whole_test_set(tmp_path: Path) -> None:
    """The standard error of each task by hand, from its values by topic; the mean of the benchmark by the sizes."""
    outcome = run(tmp_path, sample=1500)
    variance = value = 0.0
    for result in outcome.tasks:
        size, by_topic = SIZES[result.task], {topic: list[float]() for topic in TOPICS}
        for one in outcome.scored[result.task]:
            by_topic[one.category].append(float(one.values["acc"][0]))  # type: ignore[arg-type]
        of_task = mean_of_task = 0.0
        for topic, values in by_topic.items():
            whole = len([index for index in range(size) if TOPICS[index % 3] == topic])
            share, average = whole / size, sum(values) / len(values)
            spread = sum((one - average) ** 2 for one in values) / (len(values) - 1)
            of_task += share**2 * spread / len(values) * (1 - len(values) / whole)
            mean_of_task += share * average
        assert result.metrics["acc"].value == pytest.approx(mean_of_task)
        assert result.metrics["acc"].stderr == pytest.approx(of_task**0.5)
        variance += (size / TOTAL) ** 2 * of_task
        value += size / TOTAL * mean_of_task
    found = mean(outcome).metrics["acc"]
    assert (found.value, found.stderr) == (pytest.approx(value), pytest.approx(variance**0.5))
    assert found.low < truth() < found.high
    assert "random sample (seed 0, stratified by 3 categories)" in outcome.tasks[0].warnings[0]


def test_the_first_rows_have_a_note_and_the_old_interval(tmp_path: Path) -> None:
    outcome = run(tmp_path, limit=50)
    assert [task.warnings for task in outcome.tasks] == [["first 50 rows, not a random sample (--sample draws one)"]] * 3
    whole = run(tmp_path, "toy_exam_art", limit=300).tasks[0]
    assert whole.warnings == [] and whole.sampled is None


def test_too_few_samples_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"--sample 5: 5 samples are too few: toy_exam has 3 tasks.*give at least 6"):
        plan(tmp_path, sample=5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"limit": 5, "sample": 10}, "--limit and --sample both"),
        ({"sample": 10, "precision": 0.1}, "--sample and --precision both"),
        ({"sample": 10, "sample_ids": ("3",)}, "--sample_ids and --sample both"),
    ],
)
def test_two_choices_of_samples_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        SampleChoice(**given)


def test_a_smaller_sample_does_not_replace_a_larger_one_or_the_whole(tmp_path: Path) -> None:
    large = run(tmp_path, "toy_exam_art", sample=100)
    run(tmp_path, "toy_exam_art", sample=50)
    assert large.folder.results().tasks["toy_exam_art"].n == 100
    run(tmp_path, "toy_exam_art", limit=20)
    assert large.folder.results().tasks["toy_exam_art"].n == 100
    decided = run(tmp_path, "toy_exam_art", decide=Claim("acc", ">", 0.99))
    stored = large.folder.results()
    assert decided.tasks[0].n == 200 == stored.tasks["toy_exam_art"].n
    assert [*stored.decisions.values()] == decided.decisions
    run(tmp_path, "toy_exam_art", sample=250)
    stored = large.folder.results()
    assert stored.tasks["toy_exam_art"].n == 250, "and the decision stays beside the scores of more samples"
    assert [*stored.decisions.values()] == decided.decisions
    run(tmp_path, "toy_exam_art")
    run(tmp_path, "toy_exam_art", sample=100)
    assert large.folder.results().tasks["toy_exam_art"].n == 300


def budgeted(tmp_path: Path, tokens: int, **given: Any) -> Outcome:
    """Each request takes four tokens."""
    planned = plan(tmp_path, **given)
    limited = replace(planned.config, limits=BudgetLimits(tokens=tokens))
    return replace(planned, config=limited).execute(quiet=True)


def test_a_budget_ends_with_a_smaller_random_sample(tmp_path: Path) -> None:
    outcome = budgeted(tmp_path, 1200, sample=600)
    done = {(task, str(one.sample.id)) for task, some in outcome.scored.items() for one in some if one.error is None}
    smaller = run(tmp_path / "other", sample=len(done))
    assert outcome.stopped and done == ids(smaller) and 250 < len(done) <= 300
    assert mean(outcome).metrics == mean(smaller).metrics
    assert {task.n + task.pending for task in outcome.tasks} == {task.n * 2 for task in outcome.tasks} or outcome.tasks


def test_a_benchmark_whose_tasks_were_not_reached_has_no_mean(tmp_path: Path) -> None:
    outcome = budgeted(tmp_path, 500)
    assert [task.n for task in outcome.tasks] == [125, 0, 0]
    found = mean(outcome).metrics["acc"]
    assert math.isnan(found.value) and (found.low, found.high, found.n) == (None, None, 125)
    assert score_table(outcome.tasks, outcome.benchmarks, "-")[-1][2:7] == ["acc", "NaN", "-", "-", "125/3000"]
    assert [task.warnings[:-1] for task in outcome.tasks] == [
        ["first 125 rows, not a random sample (--sample draws one)"],
        [],
        [],
    ]
    assert [row["sampled"] for row in collect(tmp_path / "out")] == [
        "first 125 of 2000",
        "first 0 of 700",
        "first 0 of 300",
        "first 125 of 3000",
    ]


def test_samples_with_gaps_are_neither_random_nor_first_rows(tmp_path: Path) -> None:
    """As where several processes stopped at one budget."""
    chosen: list[dict[str, Any]] = [{"sample": 100}, {"limit": 100}]
    for given in chosen:
        planned = plan(tmp_path / next(iter(given)), "toy_exam_art", **given)
        with planned.open(quiet=True) as opened:
            opened.answer_all()
            scored = opened.scores.score_states(planned.states)
        gap = scored[3].updated(responses=[[]], values={}, error=NOT_ANSWERED)
        results, _ = replace(opened.scores, stopped="the budget").results({"toy_exam_art": [*scored[:3], gap, *scored[4:]]})
        found = results["toy_exam_art"]
        assert (found.n, found.pending, found.sampled) == (99, 1, None)
        assert found.warnings[0] == "the samples that ran are neither the first rows nor a random sample"


def test_a_decision_on_failures_alone_is_undecided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAM_FAILS", "1")
    outcome = run(tmp_path, "toy_exam_art", decide=Claim("acc", "<", 0.5))
    (decision,) = outcome.decisions
    assert (decision.outcome, decision.n, decision.failed) == ("undecided", 200, 200)
    (stored,) = outcome.folder.results().decisions.values()
    assert stored.looks == [Look(200, "NaN", 0.0, 1.0)]


@pytest.mark.parametrize("bound", [1.5, -0.1, 60.0])
def test_a_claim_that_no_score_can_decide_is_refused(tmp_path: Path, bound: float) -> None:
    with pytest.raises(SpecError, match="between 0 and 1"):
        plan(tmp_path, decide=Claim("acc", ">", bound))


def test_the_precision_is_reached_with_a_planned_sample(tmp_path: Path) -> None:
    outcome = run(tmp_path, precision=0.03)
    found = mean(outcome).metrics["acc"]
    assert (found.high - found.low) / 2 <= 0.03
    assert 700 <= len(ids(outcome)) <= 800  # 1.96² · 0.25 / 0.03² = 1067 of infinitely many, 786 of 3,000
    assert "74 % did not run" in outcome.precision["toy_exam"]
    assert {task.n for task in outcome.folder.results().tasks.values()} == {task.n for task in outcome.tasks}


def test_a_sample_is_extended_where_failures_make_it_too_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAM_FAILS", "2")
    outcome = run(tmp_path, "toy_exam_law", precision=0.04)
    found = outcome.tasks[0].metrics["acc"]
    assert found.low is not None and found.high is not None and (found.high - found.low) / 2 <= 0.04
    assert outcome.tasks[0].n > 500 and outcome.tasks[0].errors > 100


def test_a_claim_is_decided_early_and_the_run_can_be_extended(tmp_path: Path, exam_here: Path) -> None:
    outcome = run(tmp_path, decide=Claim("acc", ">", 0.5))
    (decision,) = outcome.decisions
    assert (decision.outcome, decision.of) == ("true", "toy_exam") and truth() > 0.5
    assert decision.n == len(ids(outcome)) < 1000
    assert len(exam_here.read_text().splitlines()) == decision.n
    assert [look.n for look in decision.looks][:1] == [200]
    found = mean(outcome).metrics["acc"]
    assert (found.low, found.high) == (decision.looks[-1].low, decision.looks[-1].high)
    assert found.low < truth() < found.high
    stored = outcome.folder.results()
    assert [*stored.decisions.values()] == [decision]

    whole = run(tmp_path)
    assert mean(whole).metrics["acc"].value == pytest.approx(truth())
    kept = whole.folder.results().benchmarks["toy_exam"]
    assert kept.n == TOTAL
    assert kept.metrics["acc"].low != found.low  # the fixed-sample interval


def test_a_decision_stays_when_another_claim_is_decided(tmp_path: Path) -> None:
    decided = run(tmp_path, decide=Claim("acc", ">", 0.6))
    first = mean(decided)
    run(tmp_path, decide=Claim("acc", ">", 0.3))
    results = next(iter(read_runs(tmp_path / "out"))).results
    assert [one.claim for one in results.decisions.values()] == ["acc>0.6", "acc>0.3"]
    assert [*results.decisions.values()][:1] == decided.decisions
    assert results.benchmarks["toy_exam"].metrics["acc"] == first.metrics["acc"]


def test_a_decision_of_an_earlier_version_is_read_and_kept(tmp_path: Path) -> None:
    """It was in the results of the benchmark and of each of its tasks."""
    decided = run(tmp_path, decide=Claim("acc", ">", 0.6))
    file, (decision,) = decided.folder.path / "results.json", decided.decisions
    stored = json.loads(file.read_text())
    entry = stored.pop("decisions").popitem()[1]
    for one in (*stored["tasks"].values(), *stored["benchmarks"].values()):
        one["decision"] = entry
    for part in (decided.folder.path / "sessions").iterdir():
        part.unlink()
    file.write_text(json.dumps(stored))
    assert [*decided.folder.results().decisions.values()] == [decision]
    run(tmp_path, decide=Claim("acc", ">", 0.3))
    results = decided.folder.results()
    assert {one.claim for one in results.decisions.values()} == {"acc>0.6", "acc>0.3"}
    assert results.benchmarks["toy_exam"].metrics["acc"] == mean(decided).metrics["acc"]


def test_a_decision_about_other_data_is_gone(tmp_path: Path) -> None:
    run(tmp_path, "toy_exam_art", decide=Claim("acc", ">", 0.6))
    planned = plan(tmp_path, "toy_exam_art", sample=250)
    changed = replace(planned, tasks=[replace(planned.tasks[0], data_hash="of other data")])
    assert changed.execute(quiet=True).folder.results().decisions == {}


def test_blocks_do_not_depend_on_what_is_recorded(tmp_path: Path) -> None:
    """A run that already has the first rows decides on the same samples as a new one."""
    fresh = run(tmp_path / "one", decide=Claim("acc", ">", 0.6))
    run(tmp_path / "two", limit=1000)
    later = run(tmp_path / "two", decide=Claim("acc", ">", 0.6))
    assert fresh.decisions == later.decisions
    assert ids(fresh) == ids(later)


def test_a_claim_about_an_unknown_metric_is_refused_before_anything_runs(tmp_path: Path, exam_here: Path) -> None:
    with pytest.raises(SpecError, match=r"--decide: f1: toy_exam_law has no such metric: its metrics are acc"):
        plan(tmp_path, decide=Claim("f1", ">", 0.5))
    assert not exam_here.exists()


@pytest.mark.parametrize("text", ["acc", "acc>", ">0.5", "acc=0.5", "acc>x", "acc>0.5,acc<0.9", "acc>nan", ""])
def test_a_claim_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="is no claim: give METRIC then"):
        read_claim(text)


def test_orders_are_permutations_and_depend_on_names_alone() -> None:
    task = make_task("toy_exam_art")
    samples = task.samples()
    members = {"toy_exam_art": (task, samples)}
    for order in (stratified_order, random_order):
        drawn = order(members, 7)
        assert sorted(drawn) == [("toy_exam_art", index) for index in range(300)]
        backwards = order({"toy_exam_art": (task, samples[::-1])}, 7)
        assert [samples[index].id for _, index in drawn] == [samples[::-1][index].id for _, index in backwards]


def test_an_error_in_the_middle_of_a_decision_loses_nothing(tmp_path: Path, exam_here: Path) -> None:
    """Values outside of 0 to 1 are refused after the first block; its responses are recorded."""
    os.environ["EXAM_LOG"] = str(exam_here)
    planned = plan(tmp_path, "toy_exam_art", decide=Claim("acc", ">", 0.5))
    task = planned.tasks[0].task
    task.score = lambda sample, responses: {"acc": 7.0}  # type: ignore[method-assign]
    with pytest.raises(RunError, match=r"--decide is for metrics between 0 and 1: acc of sample \d+ is 7"):
        planned.execute(quiet=True)
    assert len(exam_here.read_text().splitlines()) == 200
    (file,) = tmp_path.rglob("samples/*.jsonl")
    assert len(file.read_text().splitlines()) == 200  # to look at, with the answers
    again = run(tmp_path, "toy_exam_art", decide=Claim("acc", ">", 0.5))
    assert again.tally.known >= 200 and again.decisions
