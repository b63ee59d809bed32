"""Reports of runs that decided a claim, also of ones with results that no run writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mill.cli.main import run as mill
from mill.report.sections import CheckSection, RunSection, find_sections
from mill.view.offline import results_page
from tests.exam_runs import run_exam
from tests.view.saved_checks import page_data


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decided")
    run_exam(folder, "name=a,accuracy=0.65", "--decide", "acc>0.6")
    return folder


def test_the_run_and_the_check_of_a_decision_have_its_course(decided: Path) -> None:
    check, run = find_sections(decided)
    assert isinstance(check, CheckSection) and isinstance(run, RunSection)
    assert check.check.command == "decide" and next(iter(run.results.tasks)) == "toy_exam_law"
    data = page_data(results_page(decided))
    (shown,), (page,) = data["checks"].values(), data["runs"].values()
    assert shown["charts"] == page["run"]["decisions"] and len(shown["charts"]) == 1
    assert not shown["changes"]["listed"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"total": 0}, "total"),
        ({"alpha": 0.9}, "alpha"),
        ({"looks": []}, "the looks contradict the decision"),
        ({"bound": float("inf")}, "bound"),
        ({"looks": [{"n": 200, "value": 0.6, "low": "-Infinity", "high": 0.7}]}, "looks[0].low"),
        ({"looks": [{"n": 200, "value": 0.6, "low": 0.5, "high": 0.7}] * 2}, "the looks contradict the decision"),
    ],
)
def test_an_impossible_decision_is_left_out(
    decided: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], field: str
) -> None:
    folder = tmp_path / "out"
    shutil.copytree(decided, folder)
    (good,) = folder.glob("a-*")
    shutil.copytree(good, folder / "b-12345678")
    file = next((folder / "b-12345678").glob("*/results.json"))
    results = json.loads(file.read_text())
    next(iter(results["decisions"].values())).update(change)
    file.write_text(json.dumps(results))
    assert mill(["report", str(folder), "--output", str(tmp_path / "report.html")]) == 0
    printed = capsys.readouterr().err.replace("decisions[...]: ", "decisions[...].")
    assert f"decisions[...].{field}" in printed
    data = page_data((tmp_path / "report.html").read_bytes())
    assert [run["model"] for run in data["state"]["runs"]] == ["a"]
