"""The screens of scores and of load and cost: the values of results.json and of the samples, categories, prices, charts."""

from __future__ import annotations

import math
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


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{math.floor(1000 * seconds + 0.5)} ms"
    return f"{seconds:.{2 if seconds < 10 else 1}f} s"


def open_load(screens: Any, uids: dict[str, str], name: str, **more: str) -> tuple[Any, dict[str, str]]:
    page = screens.open("load", runs=uids[name], **more)
    expect(page.locator("table.list tbody tr")).to_have_count(1)
    return page, dict(zip(headers(page), rows(page)[0], strict=True))


def test_latencies_and_tokens_are_those_of_the_samples(screens: Any, results: ResultFiles, uids: dict[str, str]) -> None:
    _, shown = open_load(screens, uids, "base")
    samples = results.runs["base"].samples("")
    seconds = sorted(one["seconds"] for one in samples)
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("Slowest", 1.0)):
        assert shown[name] == duration(seconds[math.ceil(share * len(seconds)) - 1])
    tokens = {kind: sum(one[f"{kind}_tokens"] for one in samples) for kind in ("prompt", "output")}
    right = sum(one.get("acc", one.get("exact_match")) == 1 for one in samples)
    assert shown["Samples"] == str(len(samples))
    assert shown["Right"] == str(right)
    assert shown["Prompt tokens"] == number(tokens["prompt"])
    assert shown["Output tokens"] == number(tokens["output"])
    assert shown["Tokens per right answer"] == number(sum(tokens.values()) / right)


def test_prices_give_the_cost_of_a_right_answer(screens: Any, results: ResultFiles, uids: dict[str, str]) -> None:
    page, before = open_load(screens, uids, "base")
    assert "Cost" not in before
    page.get_by_label("prompt").fill("3")
    page.get_by_label("prompt").press("Enter")
    expect(page.get_by_role("columnheader", name="Cost", exact=True)).to_be_visible()
    page.get_by_label("output").fill("15")
    page.get_by_label("output").press("Enter")
    samples = results.runs["base"].samples("")
    cost = sum(3 * one["prompt_tokens"] + 15 * one["output_tokens"] for one in samples) / 1e6
    right = sum(one.get("acc", one.get("exact_match")) == 1 for one in samples)
    expect(page.locator("table.list tbody td").nth(-2)).to_have_text(f"${number(cost)}")
    expect(page.locator("table.list tbody td").last).to_have_text(f"${number(cost / right)}")
    assert params(page) == {"runs": uids["base"], "price_in": "3", "price_out": "15"}
    page.reload()
    expect(page.locator("table.list tbody td").last).to_have_text(f"${number(cost / right)}")


def test_a_stress_check_draws_its_charts(screens: Any, results: ResultFiles, uids: dict[str, str]) -> None:
    page, _ = open_load(screens, uids, "base")
    levels = [variant["label"] for variant in results.check("stress")["variants"]]
    assert levels == ["concurrency 1", "concurrency 2"]
    heading = page.get_by_role("link", name="stress on")
    expect(heading).to_be_visible()
    expect(page.locator("h2 + .charts svg").first).to_be_visible()
    heading.click()
    expect(page.locator("table.list thead th.number")).to_have_text(levels)
