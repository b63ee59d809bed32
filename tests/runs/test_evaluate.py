"""Runs from spec to scores on a toy model: what is computed, recorded and reported."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mill.api.registry import models, tasks
from mill.api.response import Response
from mill.api.task import RenderSettings
from mill.cli.main import run as main
from mill.runs.rescore import score_again
from mill.score.run_scores import Outcome
from mill.tasks.load import load_files, select
from tests.plans import prepare

TOY = str(Path(__file__).parent.parent / "toy.py")
Evaluate = Callable[..., Outcome]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def evaluate(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> Evaluate:
    """Run the toy model; the log then holds what this run computed."""
    load_files((TOY,))
    monkeypatch.setenv("TOY_LOG", str(log))

    def run(tasks: str = "toy_gen", arguments: str = "", **given: Any) -> Outcome:
        log.write_text("")
        options = {name: given.pop(name) for name in ("limit", "fresh", "batch_size") if name in given}
        spec = f"toy[path=toy{arguments}]"
        ready = prepare(spec, select(tasks.split(",")), RenderSettings(**given), output_dir=tmp_path / "out", **options)
        return ready.execute(quiet=True)

    return run


def computed(log: Path) -> int:
    return len(log.read_text().splitlines())


def rows(outcome: Outcome, task: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in outcome.folder.samples_file(task).read_text().splitlines()]


def results(outcome: Outcome) -> dict[str, Any]:
    return outcome.folder.read("results.json")


def test_a_finished_run_is_read_not_computed(evaluate: Evaluate, log: Path) -> None:
    first = evaluate("toy_gen,toy_choice")
    assert computed(log) == 40 + 3 * 40
    again = evaluate("toy_gen,toy_choice")
    assert computed(log) == 0
    assert again.tally.known == 160
    assert [task.metrics for task in again.tasks] == [task.metrics for task in first.tasks]


def test_a_limited_run_is_extended_and_never_mistaken_for_the_full_one(evaluate: Evaluate, log: Path) -> None:
    small = evaluate(limit=10)
    assert (small.tasks[0].n, small.tasks[0].total, computed(log)) == (10, 40, 10)
    assert results(small)["tasks"]["toy_gen"]["n"] == 10
    full = evaluate()
    assert (full.tasks[0].n, computed(log)) == (40, 30)
    small_again = evaluate(limit=0.25)
    assert (small_again.tasks[0].n, computed(log)) == (10, 0)
    assert small_again.tasks[0].metrics == small.tasks[0].metrics
    assert results(small_again)["tasks"]["toy_gen"]["n"] == 40
    assert len(rows(small_again, "toy_gen")) == 40
    assert small_again.folder.read("manifest.json")["tasks"]["toy_gen"]["n"] == 40


def test_fresh_computes_again_and_loses_nothing(evaluate: Evaluate, log: Path) -> None:
    first = evaluate(limit=5)
    second = evaluate(limit=5, fresh=True)
    assert computed(log) == 5
    assert second.folder.path.name == first.folder.path.name + "~2"
    assert first.folder.path.is_dir()
    evaluate(limit=8)  # goes on in the fresh run, which takes nothing from the older one
    assert computed(log) == 3


def test_other_settings_share_deterministic_answers_of_equal_requests(evaluate: Evaluate, log: Path) -> None:
    evaluate(limit=6)
    other = evaluate(limit=6, n_shots=3)  # the toy renders no examples: its requests are the same
    assert computed(log) == 0
    assert other.folder.path.name.startswith("n_shots=3")
    assert len(rows(other, "toy_gen")) == 6


def test_sampled_answers_are_kept_for_their_run_but_never_shared(evaluate: Evaluate, log: Path) -> None:
    evaluate(limit=6, gen_kwargs={"temperature": 0.7})
    evaluate(limit=6, gen_kwargs={"temperature": 0.7})
    assert computed(log) == 0
    evaluate(limit=6, gen_kwargs={"temperature": 0.7}, n_shots=3)
    assert computed(log) == 6


def test_empty_answers_are_recorded_but_never_served_to_another_run(
    evaluate: Evaluate, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate(limit=1)
    cls = models.get("toy")
    monkeypatch.setattr(cls, "_generate_batch", lambda self, batch, options: [Response(text=" ") for _ in batch])
    evaluate(limit=4, seed=1)
    monkeypatch.undo()
    monkeypatch.setenv("TOY_LOG", str(log))
    evaluate(limit=4, seed=1)
    assert computed(log) == 0
    evaluate(limit=4, seed=2)
    assert computed(log) == 3


def test_repeats_run_a_request_that_often_and_all_answers_reach_the_metric(evaluate: Evaluate, log: Path) -> None:
    outcome = evaluate("toy_gen,toy_choice", limit=4, repeats=3)
    assert computed(log) == 3 * 4 + 3 * 3 * 4
    row = rows(outcome, "toy_gen")[0]
    assert len(row["responses"]) == len(row["values"]["exact_match"]) == 3
    assert outcome.tasks[0].metrics["exact_match"].n == 4
    shared = [sum(row["values"]["exact_match"]) / 3 for row in rows(outcome, "toy_gen")]
    assert outcome.tasks[0].metrics["exact_match"].value == pytest.approx(sum(shared) / 4)


def test_dialogs_continue_round_by_round_and_later_rounds_see_earlier_answers(evaluate: Evaluate, log: Path) -> None:
    outcome = evaluate("toy_dialog", limit=4, repeats=2)
    assert computed(log) == 4 * 2 * 3
    assert outcome.tasks[0].metrics["rounds"].value == 3
    row = rows(outcome, "toy_dialog")[0]
    first = row["responses"][0][0]["text"]
    assert f"<assistant> {first}\n<user> you said {first}; go on" in row["unrendered"]
    evaluate("toy_dialog", limit=4, repeats=2)
    assert computed(log) == 0


def test_failed_samples_are_counted_have_no_score_and_are_tried_again(
    evaluate: Evaluate, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY_FAILS", "toy_gen 3")
    outcome = evaluate(limit=10)
    (task,) = outcome.tasks
    assert (outcome.errors, task.n, task.metrics["exact_match"].n) == (1, 10, 9)
    assert task.failures == [{"id": "3", "error": "ValueError: cannot read toy_gen 3"}]
    assert rows(outcome, "toy_gen")[3]["error"] == "ValueError: cannot read toy_gen 3"
    assert rows(outcome, "toy_gen")[3]["values"] == {}
    monkeypatch.delenv("TOY_FAILS")
    mended = evaluate(limit=10)
    assert computed(log) == 1
    assert mended.errors == 0


def test_a_run_is_scored_again_without_the_model(evaluate: Evaluate, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = evaluate("toy_all,toy_dialog", limit=8)
    models._entries.pop("toy")
    same = score_again(outcome.folder)
    assert [task.metrics for task in same.tasks] == [task.metrics for task in outcome.tasks]
    assert same.benchmarks == outcome.benchmarks
    monkeypatch.setattr(tasks.get("toy_gen"), "score", lambda self, sample, responses: {"exact_match": 1.0})
    changed = score_again(outcome.folder)
    assert changed.tasks[0].metrics["exact_match"].value == 1.0
    assert results(outcome)["tasks"]["toy_gen"]["metrics"]["exact_match"]["value"] == 1.0


def test_the_manifest_has_what_was_run(evaluate: Evaluate) -> None:
    outcome = evaluate(limit=2, seed=7)
    manifest = outcome.folder.read("manifest.json")
    assert manifest["settings"]["seed"] == 7
    assert manifest["tasks"]["toy_gen"].items() >= {"n": 2, "total": 40, "version": 1, "n_shots": 0}.items()
    assert len(manifest["tasks"]["toy_gen"]["data_hash"]) == 32
    assert {"mill", "python", "torch", "transformers"} <= set(manifest["versions"])
    session = manifest["sessions"][0]
    assert (session["computed"], session["prompt_tokens"], session["output_tokens"]) == (2, 6, 4)


@pytest.mark.parametrize(
    ("score", "error"),
    [
        ({"exact_match": float("nan")}, "scoring failed: ValueError: exact_match is NaN"),
        ({"other": 1.0}, "scoring failed: ValueError: score() gave no 'exact_match', only other"),
        ({"exact_match": "right"}, "scoring failed: ValueError: could not convert string to float: 'right'"),
    ],
)
def test_a_value_that_is_no_number_is_a_failed_sample(
    evaluate: Evaluate, monkeypatch: pytest.MonkeyPatch, score: dict[str, Any], error: str
) -> None:
    monkeypatch.setattr(tasks.get("toy_gen"), "score", lambda self, sample, responses: score)
    outcome = evaluate(limit=1)
    assert outcome.tasks[0].failures == [{"id": "0", "error": error}]
    assert outcome.tasks[0].metrics["exact_match"].n == 0


def test_a_backend_whose_file_was_edited_is_another_model(evaluate: Evaluate, tmp_path: Path) -> None:
    file, values = tmp_path / "own.py", []
    for how in ("upper", "lower"):
        file.write_text(OWN_BACKEND.replace("HOW", how))
        run = prepare(f"{file}[path=demo]", select(["toy_gen"]), RenderSettings(), output_dir=tmp_path / "out", limit=2)
        outcome = run.execute(quiet=True)
        values.append([str(one.responses[0][0].text) for one in outcome.scored["toy_gen"]])
    assert values[0] == [text.upper() for text in values[1]] != values[1]


LOADING = """
    def load(self):
        ERROR
"""
CLEANING = """
    def clean(self):
        ERROR
"""
ERRORS = pytest.mark.parametrize("error", ["raise ValueError('no')", "exit(0)", "raise GeneratorExit"])


@ERRORS
def test_a_model_that_cannot_be_loaded_is_one_line_and_the_others_run(
    evaluate: Evaluate, tmp_path: Path, capsys: pytest.CaptureFixture[str], error: str
) -> None:
    (tmp_path / "own.py").write_text((OWN_BACKEND + LOADING).replace("HOW", "upper").replace("ERROR", error))
    command = ["eval", f"{tmp_path / 'own.py'}[path=own],toy[path=toy]", "toy_gen", "--limit", "1", "--quiet"]
    assert main(["--output_dir", str(tmp_path / "out"), *command]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("mill: own: the model could not be loaded: ") and printed.err.count("\n") == 1
    assert "1 request computed" in printed.out


@ERRORS
def test_a_model_that_cannot_be_freed_has_answered(
    evaluate: Evaluate, tmp_path: Path, capsys: pytest.CaptureFixture[str], error: str
) -> None:
    (tmp_path / "own.py").write_text((OWN_BACKEND + CLEANING).replace("HOW", "upper").replace("ERROR", error))
    command = ["eval", f"{tmp_path / 'own.py'}[path={tmp_path.name}]", "toy_gen", "--limit", "1", "--quiet"]
    assert main(["--output_dir", str(tmp_path / "out"), *command]) == 0
    printed = capsys.readouterr()
    assert "clean() raised" in printed.err and printed.err.count("\n") == 1
    assert "1 request computed" in printed.out


OWN_BACKEND = """
from mill.api.model import MillModel
from mill.api.registry import register_model

@register_model("own")
class Own(MillModel):
    def __init__(self, path):
        self.path = path

    @property
    def model_name(self):
        return self.path

    def _generate_batch(self, batch, gen_kwargs):
        return [request.context.HOW() for request in batch]
"""
