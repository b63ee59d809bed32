"""`mill plot`: what is drawn, in files that are equal for equal runs, and that names are only text."""

from __future__ import annotations

import math
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from mill.api.budget import Price
from mill.cli.main import run
from mill.metrics.paired import rate
from mill.report.plots import PlottedRun, draw, plotted_runs
from mill.score.recorded_run import read_runs
from tests.fixed_answers import FixedChoices, run_answers, run_right

HOSTILE = r"</text><script>alert(1)</script> $\$ $\frac{1}{0}$"
SVG = "{http://www.w3.org/2000/svg}"


def choices(folder: Path, model: str, sure: int = 8, n: int = 10) -> Path:
    """Of n answers all have the probability 0.75, and `sure` are right."""
    right, wrong = (math.log(0.75), math.log(0.25)), (math.log(0.25), math.log(0.75))
    return run_answers(folder, model, FixedChoices("pick", n), [right if index < sure else wrong for index in range(n)])


@pytest.fixture
def drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    pytest.importorskip("matplotlib")

    def call(*options: str, out: str = "plots") -> Path:
        capsys.readouterr()
        assert run(["plot", str(tmp_path / "results"), "--out", str(tmp_path / out), *options]) == 0, capsys.readouterr().err
        return tmp_path / out

    return call


def texts(file: Path) -> list[str]:
    return ["".join(one.itertext()) for one in ElementTree.parse(file).iter(f"{SVG}text")]


def test_calibration_by_hand(tmp_path: Path) -> None:
    """8 of 10 right at 0.75: |0.8 - 0.75|."""
    choices(tmp_path, "a")
    (drawn,) = plotted_runs(read_runs(tmp_path))["pick"]
    assert drawn.label == "a" and drawn.calibration is not None and drawn.calibration.n == 10
    assert drawn.calibration.ece == pytest.approx(0.05)
    (filled,) = [found for found in drawn.calibration.bins if found.n]
    assert (filled.n, filled.accuracy) == (10, 0.8) and filled.confidence == pytest.approx(0.75)
    assert (filled.first, filled.last) == (11 / 15, 12 / 15)


def test_tokens_and_dollars_by_hand(tmp_path: Path) -> None:
    """A question of `quiz` takes 10 + 2 tokens; two choices of `pick` take 2 * (10 + 1)."""
    run_right(tmp_path, "a", range(3), n=5)
    choices(tmp_path, "a")
    assert {name: one.cost for name, (one,) in plotted_runs(read_runs(tmp_path)).items()} == {"quiz": 12.0, "pick": 22.0}
    paid = plotted_runs(read_runs(tmp_path), price=Price(0.15, 0.60))
    assert paid["quiz"][0].cost == pytest.approx(1000 * (10 * 0.15 + 2 * 0.60) / 1e6)


def test_tasks_of_a_benchmark_are_drawn_together(tmp_path: Path) -> None:
    toy = str(Path(__file__).parents[1] / "toy.py")
    argv = ["eval", "toy[path=a]", "toy_all,toy_choice", "--limit", "10", "--task_paths", toy, "--quiet"]
    assert run([*argv, "--output_dir", str(tmp_path)]) == 0
    runs = read_runs(tmp_path)
    drawn = plotted_runs(runs)
    assert list(drawn) == ["toy_all", "toy_choice"] and drawn["toy_all"][0].cost == 5.0
    assert list(plotted_runs(runs, "toy_gen")) == ["toy_gen", "toy_gen2"]


def test_files(tmp_path: Path, drawn: Any) -> None:
    results = tmp_path / "results"
    choices(results, "a")
    choices(results, "b", sure=5)
    folder = drawn("--format", "svg,png,pdf")
    assert sorted(file.name for file in folder.iterdir()) == [
        f"{kind}-pick.{form}" for kind in ("calibration", "cost", "scores") for form in ("pdf", "png", "svg")
    ]
    assert (folder / "cost-pick.pdf").read_bytes().startswith(b"%PDF")
    found = texts(folder / "calibration-pick.svg")
    assert {"a", "b", "ECE 0.050, n = 10", "ECE 0.250, n = 10"} <= set(found)
    assert {"a", "b", "acc"} <= set(texts(folder / "scores-pick.svg"))
    assert {"a", "b", "tokens for a sample, prompt and output"} <= set(texts(folder / "cost-pick.svg"))
    assert "dollars for 1,000 samples" in texts(drawn("--price", "in=0.15,out=0.60", out="paid") / "cost-pick.svg")
    assert (folder / "scores-pick.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_equal_runs_make_equal_files(tmp_path: Path, drawn: Any) -> None:
    choices(tmp_path / "results", "a")
    first, second = drawn(out="first"), drawn(out="second")
    for file in first.iterdir():
        assert file.read_bytes() == (second / file.name).read_bytes(), file.name
        assert not re.search(rb"20\d\d-\d\d-\d\d", file.read_bytes())


def test_names_are_text(tmp_path: Path, drawn: Any) -> None:
    """Neither markup nor a formula; a name that starts with an underscore is in the legend."""
    results = tmp_path / "results"
    for name in (HOSTILE, "_hidden", "$x^2$", "a\x1b[31m\x00\nb", "\ud800"):
        choices(results, name)
    folder = drawn()
    for kind in ("scores", "cost", "calibration"):
        file = folder / f"{kind}-pick.svg"
        shown = texts(file)
        assert {"_hidden", "$x^2$", r"\ud800"} <= set(shown), kind
        assert any(text.startswith("</text><sc") for text in shown)
        root = ElementTree.parse(file).getroot()
        assert not list(root.iter(f"{SVG}script")) and not list(root.iter("script"))
        assert b"\x1b" not in file.read_bytes()


@pytest.mark.parametrize(("value", "text"), [(math.inf, "inf"), (1e308, "1.000e+308")])
def test_scores_that_no_axis_has_are_named(value: float, text: str) -> None:
    pytest.importorskip("matplotlib")
    from mill.metrics.estimate import Estimate

    estimates = Estimate(value, None, -value, value, 3), rate(1, 2)
    runs = [PlottedRun(str(index), index, {"word_perplexity": one}, math.nan, None) for index, one in enumerate(estimates)]
    assert f">{text}</text>".encode() in draw("t", runs, ["svg"], dollars=False)["scores"]["svg"]


def test_one_run_without_choices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    run_right(tmp_path, "a", range(3), n=5)
    capsys.readouterr()
    assert run(["plot", str(tmp_path), "--format", "svg"]) == 0
    out = capsys.readouterr().out
    assert "no plot of calibration: no task is multiple choice by log-probability" in out
    assert sorted(file.name for file in (tmp_path / "plots").iterdir()) == ["cost-quiz.svg", "scores-quiz.svg"]
    assert out.splitlines()[-1] == f"2 files of 1 run in {tmp_path / 'plots'}"


BAD_OPTIONS: list[tuple[list[str], str]] = [
    (["--format", "eps"], "'eps' is none of svg, png, pdf"),
    (["--price", "0.15"], "--price: '0.15' is not key=value"),
    (["--price", "in=nan,out=1"], "in=nan is no price"),
    (["--task", "none"], "no task or benchmark"),
    (["--model", "none"], "no run with scores of a model that contains 'none'"),
    (["--out", "/proc/none"], "cannot write"),
]


def test_bad_options_get_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    run_right(tmp_path, "a", range(3), n=5)
    for options, message in BAD_OPTIONS:
        capsys.readouterr()
        assert run(["plot", str(tmp_path), *options]) == 2, options
        err = capsys.readouterr().err
        assert message in err and err.count("\n") == 1, options


def test_without_matplotlib_the_command_names_the_extra(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_right(tmp_path, "a", range(3), n=5)
    capsys.readouterr()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run(["plot", str(tmp_path)]) == 2
    assert capsys.readouterr().err == 'mill: mill plot needs the package matplotlib: pip install -e ".[plot]"\n'
