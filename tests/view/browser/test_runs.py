"""The screen of runs: what each row shows, filters, and the way to a comparison."""

from __future__ import annotations

from typing import Any

from tests.browsing import needs_chromium, sync_api
from tests.view.browser.results import ResultFiles
from tests.view.browser.shown import number, params, rows

pytestmark = needs_chromium
expect = sync_api.expect


def row_of(page: Any, label: str) -> Any:
    return page.locator("tbody tr", has=page.get_by_role("link", name=label, exact=True))


def test_each_run_has_its_scores_and_counts(screens: Any, results: ResultFiles) -> None:
    page = screens.open("runs")
    expect(page.locator("tbody tr")).to_have_count(len(results.runs))
    row = row_of(page, "failing")
    scores = results.runs["failing"].results["tasks"]
    assert f"toy_gen exact match {number(scores['toy_gen']['metrics']['exact_match']['value'])}" in row.inner_text()
    samples = results.runs["failing"].samples("")
    assert f"{len(samples)} samples" in row.inner_text()
    failed = [one["id"] for one in samples if one["error"]]
    assert failed == ["7"]
    row.get_by_role("link", name="1 failed").click()
    expect(page.locator("table.samples-table tbody tr")).to_have_count(1)
    assert rows(page)[0][:2] == ["7", "toy_gen"]
    assert params(page)["status"] == "failed"


def test_runs_are_filtered_by_failures_and_by_name(screens: Any, results: ResultFiles) -> None:
    page = screens.open("runs")
    page.get_by_label("with failed samples").check()
    expect(page.locator("tbody tr")).to_have_count(1)
    assert rows(page)[0][1].startswith("failing")
    page.reload()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_label("with failed samples").uncheck()
    page.get_by_label("Filter").fill("images.jsonl")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert rows(page)[0][1].startswith("sight")
    assert params(page)["name"] == "images.jsonl"


def test_runs_of_checks_are_hidden_until_they_are_wanted(screens: Any, results: ResultFiles) -> None:
    page = screens.open("runs")
    everything = len(list(results.root.rglob("manifest.json")))
    assert everything > len(results.runs)
    expect(page.locator("tbody tr")).to_have_count(len(results.runs))
    page.get_by_label(f"runs of checks ({everything - len(results.runs)})").check()
    expect(page.locator("tbody tr")).to_have_count(everything)


def test_two_runs_are_picked_for_a_comparison(screens: Any, uids: dict[str, str]) -> None:
    page = screens.open("runs")
    expect(page.get_by_text("Choose two runs to compare")).to_be_visible()
    for name in ("failing", "agent"):
        row_of(page, name).get_by_role("checkbox").check()
    assert params(page)["runs"] == f"{uids['failing']},{uids['agent']}"
    page.get_by_role("link", name="Compare 2 runs").click()
    expect(page.get_by_role("heading", name="Compare")).to_be_visible()
    assert params(page) == {"a": uids["failing"], "b": uids["agent"]}
    expect(page.get_by_role("alert").first).to_contain_text("no task in common")
    screens.watch.forgive("status of 400")
