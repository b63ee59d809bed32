"""The screen of scores: the values of results.json side by side, categories, and the samples behind them."""

from __future__ import annotations

from typing import Any

from tests.browsing import needs_chromium, sync_api
from tests.view.browser.results import CATEGORIES, CHOICES, TEXTS, ResultFiles
from tests.view.browser.shown import headers, number, params, rows

pytestmark = needs_chromium
expect = sync_api.expect


def open_two(screens: Any, uids: dict[str, str], **more: str) -> Any:
    page = screens.open("scores", runs=f"{uids['base']},{uids['other']}", **more)
    expect(page.locator("table.list").first).to_be_visible()
    return page


def values(results: ResultFiles, task: str, metric: str) -> list[dict[str, Any]]:
    """The estimates of both runs."""
    runs = [results.runs[name] for name in ("base", "other")]
    return [run.results["tasks"][run.task(task)]["metrics"][metric] for run in runs]


def test_runs_are_columns_and_metrics_are_rows(screens: Any, results: ResultFiles, uids: dict[str, str]) -> None:
    page = open_two(screens, uids)
    assert headers(page)[0] == "Task"
    assert [text.split()[0] for text in headers(page)[1:3]] == ["base", "other"]
    shown = {tuple(row[0].split("\n")[-2:]): row for row in rows(page)}
    found = 0
    for task, metrics in ((CHOICES, ("acc", "acc_norm")), (TEXTS, ("exact_match", "includes"))):
        for metric in metrics:
            row = next(
                row
                for (name, shown_metric), row in shown.items()
                if name.endswith(task) and shown_metric == metric.replace("_", " ")
            )
            first, second = values(results, task, metric)
            for cell, one in zip(row[1:3], (first, second), strict=True):
                assert cell.split("\n")[0] == number(one["value"])
                assert f"{number(one['low'])} to {number(one['high'])}" in cell
                assert f"n {one['n']}" in cell
            difference = second["value"] - first["value"]
            assert row[3] == ("+" if difference > 0 else "") + number(difference)
            found += 1
    assert found == len(shown) == 4
    page.locator("details.picker summary").click()
    page.locator(".picker label", has_text="other").first.get_by_role("checkbox").uncheck()
    expect(page.locator("table.list thead th")).to_have_count(2)
    assert params(page)["runs"] == uids["base"]


def test_a_task_opens_its_categories_and_a_category_its_samples(
    screens: Any, results: ResultFiles, uids: dict[str, str]
) -> None:
    page = open_two(screens, uids)
    page.get_by_role("link", name=CHOICES).first.click()
    expect(page.get_by_role("heading", name="Categories of")).to_be_visible()
    shown = {row[0]: row[1:] for row in rows(page, "h2 + div table.list")}
    assert sorted(shown) == sorted(CATEGORIES)
    for column, name in enumerate(("base", "other")):
        of_task = results.runs[name].results["tasks"][results.runs[name].task(CHOICES)]["categories"]
        for category, cells in shown.items():
            one = of_task[category]["acc"]
            assert cells[column].split("\n")[0] == number(one["value"])
            assert f"{number(one['low'])} to {number(one['high'])}" in cells[column]
    address = page.url
    page.reload()
    expect(page.get_by_role("heading", name="Categories of")).to_be_visible()
    assert page.url == address
    category = "colours & light"
    page.locator("tr", has_text=category).get_by_role("link").first.click()
    samples = [one for one in results.runs["base"].samples(CHOICES) if one["category"] == category]
    expect(page.locator(".samples-table tbody tr")).to_have_count(len(samples))
    assert [row[0] for row in rows(page)] == [one["id"] for one in samples]
    assert params(page)["category"] == category
