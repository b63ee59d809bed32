"""Evaluation runs on the page, in a real browser."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mill.checks.result import Check, Variant
from mill.cli.main import run as main
from mill.metrics.paired import rate
from mill.report.runs import RunSection, read_run
from mill.runs.folder import RunFolder, find_runs

TOY = str(Path(__file__).parents[1] / "toy.py")
HOSTILE = "</pre></details><img src=x onerror=window.hacked=1><script>window.hacked=1</script>"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run of a benchmark and of choices, where some samples failed."""
    for name in [name for name in sys.modules if name.startswith("mill_file_")]:
        del sys.modules[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOY_FAILS", "toy_gen 3")
    argv = ["eval", "toy[path=a]", "toy_all,toy_choice", "--limit", "10", "--task_paths", TOY, "--output_dir", "out"]
    assert main([*argv, "--quiet"]) == 1
    return find_runs(tmp_path / "out")[0]


def texts(page: Any, selector: str) -> list[str]:
    return [str(text) for text in page.locator(selector).all_text_contents()]


def test_scores_charts_failures_and_samples(open_report: Any, folder: RunFolder) -> None:
    section = read_run(folder)
    page = open_report(section)
    assert page.locator("h1").inner_text() == "mill eval" and page.locator("nav").count() == 0
    assert texts(page, ".scores tbody th") == ["toy_gen", "toy_gen2", "toy_choice", "toy_all (mean of 2)"]
    assert texts(page, "figcaption")[:2] == ["exact_match", "acc"]
    assert texts(page, "figcaption")[2].startswith("Calibration of toy_choice: ECE ")
    means = texts(page, "figure >> nth=0 >> .name")
    assert means == ["toy_all (mean of 2)", "toy_gen", "toy_gen2"]
    mean = section.results.benchmarks["toy_all"].metrics["exact_match"]
    interval = f"({mean.low:.4f} to {mean.high:.4f})"
    assert texts(page, "figure >> nth=0 >> circle title")[0].endswith(f": {mean.value:.4f} {interval}")
    assert texts(page, ".warnings li") == [
        "3 tasks: first 10 rows, not a random sample (--sample draws one)",
        "toy_gen: 1 of 10 samples failed (3): ValueError: cannot read toy_gen 3",
    ]
    assert page.locator(".about").inner_text().startswith("model a · path a · backend toy")
    first = page.locator(".sample").first
    first.locator("summary").click()
    assert first.locator(".tag").inner_text() == "failed" and "cannot read toy_gen 3" in first.locator(".error").inner_text()
    assert page.locator(".count").inner_text() == "30 of 30 samples"
    page.locator("select[name=task]").select_option("toy_choice")
    assert page.locator(".count").inner_text() == "10 of 30 samples"
    shown = page.locator(".sample:visible").first
    shown.locator("summary").click()
    assert shown.locator(".choices tbody th").all_text_contents() == [" choice 0", " choice 1", " choice 2"]
    assert shown.locator(".choices .best").count() == 1


def test_an_index_links_to_every_section(open_report: Any, folder: RunFolder) -> None:
    variant = Variant("four bits", metrics={"match_rate": rate(9, 10)}, verdict="different: 1 of 10 texts differ")
    section = read_run(folder)
    page = open_report(Check("compare", ["tales"], [variant], "base"), section)
    assert page.locator("h1").inner_text() == "1 check, 1 run"
    rows = [row.locator("td").all_text_contents() for row in page.locator(".index tbody tr").all()]
    assert rows[0][:2] == ["compare", "four bits against base on tales"]
    assert rows[0][3] == "four bits: different: 1 of 10 texts differ"
    assert rows[1][0] == "eval" and rows[1][2:] == [section.when, section.main_scores]
    page.locator(".index a").last.click()
    assert page.evaluate("location.hash") == "#section-2"
    assert page.locator("#section-2 h2").inner_text() == section.name
    assert page.locator("#section-2").evaluate("one => Math.abs(one.getBoundingClientRect().top) < 60")


def test_an_unfinished_run_says_so(open_report: Any, folder: RunFolder) -> None:
    (folder.path / "results.json").unlink()
    page = open_report(read_run(folder))
    assert page.locator(".verdict").inner_text().startswith("This run was not finished: it has no results.json.")
    assert page.locator(".scores, figure").count() == 0 and page.locator(".sample").count() == 30


@pytest.mark.parametrize("width", [360, 1400])
def test_nothing_is_wider_than_the_page(open_report: Any, folder: RunFolder, width: int) -> None:
    long = {"response": "W" * 3000, "prompt": "W" * 900, "id": "i" * 200}
    spoil(folder, long)
    page = open_report(Check("compare", ["tales"], [Variant("four bits")], "base"), read_run(folder), width=width)
    page.evaluate("document.querySelectorAll('.sample').forEach(one => { one.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_hostile_samples_are_shown_and_never_run(open_report: Any, folder: RunFolder) -> None:
    names = ("response", "prompt", "reasoning", "category", "target", "extracted", "error")
    spoil(folder, dict.fromkeys(names, HOSTILE))
    section = read_run(folder)
    hostile = RunSection(Path(HOSTILE), {**section.manifest, "model": {"name": HOSTILE}}, section.results, section.samples)
    page = open_report(hostile, section)
    page.evaluate("document.querySelectorAll('.sample').forEach(one => { one.open = true; })")
    page.wait_for_timeout(200)
    assert page.evaluate("window.hacked") is None and page.locator("img, iframe").count() == 0
    assert page.locator("script").count() == 1
    assert HOSTILE in page.locator("h2").first.inner_text() and HOSTILE in texts(page, ".prompt")


def spoil(folder: RunFolder, values: dict[str, str]) -> None:
    file = folder.samples_file("toy_gen2")
    rows = [{**json.loads(line), **values} for line in file.read_text().splitlines()]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows[:1]))
