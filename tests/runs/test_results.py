"""Scores in results.json: those of benchmarks follow those of their tasks, whatever was asked for and in whatever order."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mill.api.registry import tasks
from mill.api.task import Benchmark, RenderSettings, Sample
from mill.runs.rescore import score_again
from mill.store.folder import RunFolder
from mill.tasks.load import select
from tests.plans import prepare

Evaluate = Callable[..., dict[str, Any]]


def gold(answer: str, count: int = 4) -> type:
    """The toy task with one gold answer, which the toy model never or always gives."""
    toy = tasks.get("toy_gen")
    body = {
        "samples": lambda self: [Sample(str(i), {"question": f"{self.name} {i}", "answer": answer}) for i in range(count)],
        "target": lambda self, sample: sample.doc["answer"],
        "score": lambda self, sample, responses: {"exact_match": float(responses[0].text.startswith(sample.doc["answer"]))},
    }
    return type("Gold", (toy,), body)


@pytest.fixture
def evaluate(toy_here: Path, tmp_path: Path) -> Evaluate:
    """Run tasks whose answers all begin with `answer`, and give results.json."""

    def run(names: str = "pair", right: dict[str, bool] | None = None, **given: Any) -> dict[str, Any]:
        for name in ("g1", "g2"):
            tasks.add(name, gold("answer" if (right or {}).get(name, True) else "never", given.pop(name, 4)))
        tasks.add("pair", Benchmark("pair", ("g1", "g2")))
        made = prepare("toy[path=toy]", select(names.split(",")), RenderSettings(), output_dir=tmp_path / "out", **given)
        folder = made.execute(quiet=True).folder
        found: dict[str, Any] = json.loads((folder.path / "results.json").read_bytes())
        return found

    return run


def mean(results: dict[str, Any], name: str = "pair") -> tuple[float, int]:
    entry = results["benchmarks"][name]
    return entry["metrics"]["exact_match"]["value"], entry["n"]


def test_a_mean_is_that_of_the_results_beside_it(evaluate: Evaluate) -> None:
    """One task has other data and a limit; the full result of the other stays, and is what the mean is made of."""
    evaluate()
    limited = evaluate(right={"g1": False}, limit=1)
    assert [limited["tasks"][name]["n"] for name in ("g1", "g2")] == [1, 4]
    assert mean(limited) == (0.8, 5)


def test_a_mean_is_renewed_when_tasks_are_scored_otherwise(evaluate: Evaluate, tmp_path: Path) -> None:
    evaluate()
    (run,) = (tmp_path / "out").glob("*/*")
    for name in ("g1", "g2"):
        tasks.add(name, type("Harsh", (gold("answer"),), {"score": lambda *_: {"exact_match": 0.0}}))
    score_again(RunFolder(run))
    assert mean(json.loads((run / "results.json").read_bytes())) == (0.0, 8)


def test_a_mean_of_a_benchmark_that_is_not_known_any_more_does_not_outlive_its_tasks(evaluate: Evaluate) -> None:
    """How it was made is not known here: no mean is better than one of other results."""
    tasks.add("own", Benchmark("own", ("g1", "g2")))
    assert mean(evaluate("own"), "own") == (1.0, 8)
    del tasks._entries["own"]
    assert mean(evaluate("g1"), "own") == (1.0, 8), "nothing has changed"
    again = evaluate("g1", right={"g1": False})
    assert again["benchmarks"]["own"]["metrics"] == {}
