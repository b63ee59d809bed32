"""Cells of a matrix: what makes one, what is missing of it, and the file that remembers them."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mill.api.errors import MillError
from mill.api.task import RenderSettings
from mill.runs.evaluate import Plan
from mill.schedule import Cell, Expected, cell_of, read_cells, remember_cells, unscheduled
from mill.store.schema import TaskResult
from mill.tasks.load import load_files, select
from tests.plans import prepare

TOY = Path(__file__).parents[1] / "toy.py"
CELL = Cell("toy[path=a]", "toy_gen", 0, ("eval", "toy[path=a]", "toy_gen"), "a-1/default", {"toy_gen": Expected(4, 1, "h")})


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_N", "4")
    load_files((str(TOY),))


def planned(out: Path, task: str = "toy_gen", limit: int | None = None) -> tuple[Plan, Cell]:
    run = prepare("toy[path=a]", select([task]), RenderSettings(), output_dir=out, limit=limit)
    return run, cell_of(run, "toy[path=a]", task, None, ["eval"], out)


def write_cells(out: Path, content: Any) -> None:
    (out / "schedule/cells").mkdir(parents=True)
    (out / "schedule/cells/k.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("result", "what"),
    [
        (None, "no result"),
        ({"n": 4, "version": 2, "data_hash": "h", "errors": 0}, "no result"),
        ({"n": 4, "version": 1, "data_hash": "other", "errors": 0}, "no result"),
        ({"n": 3, "version": 1, "data_hash": "h", "errors": 0}, "3 of 4 samples"),
        ({"n": 4, "version": 1, "data_hash": "h", "errors": 2}, "2 samples failed"),
        ({"n": 4, "version": 1, "data_hash": "h", "errors": 0}, None),
        ({"n": 9, "version": 1, "data_hash": "h", "errors": 0}, None),
    ],
)
def test_what_is_missing_in_a_result(result: dict[str, Any] | None, what: str | None) -> None:
    found = None if result is None else TaskResult("t", "GENERATIVE_QA", n_shots=0, total=9, metrics={}, **result)
    assert Expected(4, 1, "h").missing(found) == what


def test_a_cell_is_done_when_every_task_of_a_benchmark_is(tmp_path: Path) -> None:
    run, cell = planned(tmp_path, "toy_all")
    assert cell.missing(tmp_path) == ["toy_gen: no result", "toy_gen2: no result"]
    prepare("toy[path=a]", select(["toy_gen"]), RenderSettings(), output_dir=tmp_path).execute(quiet=True)
    assert cell.missing(tmp_path) == ["toy_gen2: no result"]
    run.execute(quiet=True)
    assert cell.missing(tmp_path) == []


def test_commands_at_the_same_time_lose_none_of_each_others_cells(tmp_path: Path) -> None:
    def remember(worker: int) -> None:
        for number in range(25):
            remember_cells(tmp_path, [replace(CELL, argv=("eval", str(worker), str(number)), job=f"{worker}_{number}")])

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(remember, range(3)))
    assert len({cell.job for cell in read_cells(tmp_path).values()}) == 75


def test_a_damaged_result_is_missing_and_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / CELL.run).mkdir(parents=True)
    (tmp_path / CELL.run / "results.json").write_text("{")
    (missing,) = CELL.missing(tmp_path)
    assert missing.startswith("toy_gen: ") and "results.json is not valid JSON" in missing


def test_runs_outside_the_schedule_are_checked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, cell = planned(tmp_path)
    with run.open(quiet=True):
        pass
    assert unscheduled(tmp_path) == [("a", "toy_gen", "no result")]
    remember_cells(tmp_path, [cell])
    assert unscheduled(tmp_path) == [], "it was scheduled: the cell shows what is missing"
    (tmp_path / "schedule/cells" / f"{cell.key}.json").unlink()
    assert unscheduled(tmp_path) == [("a", "toy_gen", "no result")]
    run.execute(quiet=True)
    assert unscheduled(tmp_path) == []


@pytest.mark.parametrize("path", ["../other/default", "a-1/../../other/default", "{absolute}"])
def test_a_cell_that_leads_out_of_the_output_folder_is_not_followed(tmp_path: Path, path: str) -> None:
    """The file may come with results of another user."""
    out, other = tmp_path / "out", tmp_path / "other/default"
    other.mkdir(parents=True)
    done = {"tasks": {"toy_gen": {"n": 4, "version": 1, "data_hash": "h", "errors": 0}}}
    (other / "results.json").write_text(json.dumps(done))
    (out / "a-1").mkdir(parents=True)
    cell = replace(CELL, run=path.replace("{absolute}", str(other)))
    remember_cells(out, [cell])
    try:
        missing = read_cells(out)[cell.key].missing(out)
    except MillError as refused:
        assert "outside" in str(refused)
    else:
        assert missing == ["toy_gen: no result"]


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"model": "m", "unknown": 1, "expected": {}, "argv": []},
        {"model": "m", "task": "t", "n_shots": 0, "argv": [], "run": "r", "expected": {"t": {"n": 1}}},
        {"model": "m", "task": "t", "n_shots": 0, "argv": [1], "run": "r", "expected": {}},
    ],
)
def test_a_file_of_another_shape_is_refused_in_one_line(tmp_path: Path, content: Any) -> None:
    write_cells(tmp_path, content)
    with pytest.raises(MillError, match=r"k\.json"):
        read_cells(tmp_path)
