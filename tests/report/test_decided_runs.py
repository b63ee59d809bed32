"""Reports of runs that decided a claim, also of ones with results that no run writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mill.cli.main import run as mill
from mill.report.html import report_page
from mill.report.html.charts import HEIGHT, LEFT, RIGHT, WIDTH
from mill.report.html.plots import sequence_chart
from mill.report.runs import RunSection
from mill.report.sections import CheckSection, find_sections
from mill.runs.schema import Decision, Look
from tests.exam_runs import run_exam


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decided")
    run_exam(folder, "name=a,accuracy=0.65", "--decide", "acc>0.6")
    return folder


def test_the_run_of_a_decision_has_its_own_section(decided: Path) -> None:
    check, run = find_sections(decided)
    assert isinstance(check, CheckSection) and isinstance(run, RunSection)
    assert check.check.command == "decide" and next(iter(run.results.tasks)) == "toy_exam_law"
    page = report_page([check, run])
    assert "No sample changed." not in page
    assert page.count('class="band c0"') == page.count('class="line dashed c1"') == 1
    assert report_page([run]).count('class="band c0"') == report_page([check]).count('class="band c0"') == 1


def test_the_ends_of_the_sequence_are_one_area() -> None:
    """Its corners are the upper ends from left to right, then the lower ends from right to left."""
    looks = [Look(100, 0.7, 0.5, 0.9), Look(200, 0.6, 0.5, 0.7)]
    (chart,) = sequence_chart(Decision("exam", "acc", ">", 0.4, 0.05, "true", 200, 1000, reached=0.5, looks=looks))
    (points,) = (part.split('"')[0] for part in chart.split('class="band c0" points="')[1:])
    corners = [tuple(map(float, corner.split(","))) for corner in points.split()]
    middle = (LEFT + WIDTH - RIGHT) / 2
    assert [x for x, _ in corners] == pytest.approx([middle, WIDTH - RIGHT, WIDTH - RIGHT, middle], abs=0.06)
    (high, later, low, first) = (y for _, y in corners)
    assert high < later < low == first < HEIGHT  # 0.9, 0.7, 0.5, 0.5: y grows downwards


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"total": 0}, "total"),
        ({"n": -1}, "n"),
        ({"alpha": 0.0}, "alpha"),
        ({"alpha": 0.9}, "alpha"),
        ({"n": 5}, "n contradicts the other fields"),
        ({"total": 10}, "n contradicts the other fields"),
        ({"failed": 5000}, "failed contradicts the other fields"),
        ({"bound": 0.99}, "reached contradicts the other fields"),
        ({"looks": []}, "outcome contradicts the other fields"),
        ({"bound": float("inf")}, "bound"),
        ({"compare": "=="}, "compare"),
        ({"looks": [{"n": 200, "value": 0.6, "low": 0.5, "high": float("inf")}]}, "looks[0].high"),
        ({"looks": [{"n": 200, "value": 0.6, "low": "-Infinity", "high": 0.7}]}, "looks[0].low"),
        ({"looks": [{"n": -5, "value": 0.6, "low": 0.5, "high": 0.7}]}, "looks[0].n"),
        ({"looks": [{"n": 200, "value": 0.6, "low": 0.5, "high": 0.7}] * 2}, "looks contradicts the other fields"),
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
    assert "a on toy_exam" in (tmp_path / "report.html").read_text()
