"""Checks: metrics, rules with their outcomes, one metric over time, and a check as one file."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.browsing import needs_chromium, sync_api
from tests.view.browser.conftest import check_uid
from tests.view.browser.results import ResultFiles
from tests.view.browser.shown import params, rows

pytestmark = needs_chromium
expect = sync_api.expect


def open_check(screens: Any, results: ResultFiles, command: str, **more: str) -> Any:
    page = screens.open("checks", check=check_uid(results, command), **more)
    expect(page.get_by_role("heading", name=f"{command} on")).to_be_visible()
    return page


def outcomes(page: Any) -> list[str]:
    return [row[2].split()[-1] for row in rows(page, "table.list:has(caption)")]


def test_a_check_has_its_verdict_and_metrics(screens: Any, results: ResultFiles) -> None:
    page = open_check(screens, results, "compare")
    (variant,) = results.check("compare")["variants"]
    expect(page.locator(".verdict")).to_contain_text(f"{variant['label']}: {variant['verdict']}")
    shown = {row[0]: row[1] for row in rows(page, ".scroll table.list") if len(row) == 2}  # without headings of groups
    for title, name in (("same text", "match_rate"), ("failed requests", "failure_rate"), ("truncated answers", "cut_rate")):
        one = variant["metrics"][name]
        shown_values = [float(text) for text in re.findall(r"([\d.]+) %", shown[title])]
        expected = [100 * one[key] for key in ("value", "low", "high")]
        assert shown_values == pytest.approx(expected, abs=0.06)
    assert page.locator(".chart svg").count() > 0


def test_rules_are_kept_broken_inconclusive_or_refused(screens: Any, results: ResultFiles) -> None:
    """The interval of no failure in n requests reaches above 10 %, so that the data cannot show "fewer than 10 %"."""
    (variant,) = results.check("compare")["variants"]
    failures, matches = variant["metrics"]["failure_rate"], variant["metrics"]["match_rate"]
    assert failures["value"] == 0 and 0.1 < failures["high"] < 0.5
    assert matches["high"] < 0.9
    page = open_check(screens, results, "compare")
    page.get_by_label("--fail_on").fill("no_such_metric>1")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("alert")).to_contain_text("no_such_metric")
    screens.watch.forgive("status of 400")
    page.get_by_label("--fail_on").fill("match_rate<0.9")
    page.get_by_label("--require").fill("failure_rate<0.5,failure_rate<0.1")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator(".rule-inconclusive")).to_have_count(1)
    expect(page.get_by_role("alert")).to_have_count(0)
    assert sorted(outcomes(page)) == ["broken", "inconclusive", "kept"]
    assert params(page)["fail_on"] == "match_rate<0.9"
    page.reload()
    expect(page.locator(".rule-broken")).to_have_count(1)
    assert sorted(outcomes(page)) == ["broken", "inconclusive", "kept"]


def test_one_metric_is_shown_over_time(screens: Any, results: ResultFiles) -> None:
    page = screens.open("checks")
    expect(page.locator(".cards li")).to_have_count(3)
    page.get_by_label("Metric").select_option("failure_rate")
    expect(page.locator(".chart svg")).to_be_visible()
    measured = [
        (command, variant["label"])
        for command in results.checks
        for variant in results.check(command)["variants"]
        if "failure_rate" in variant["metrics"]
    ]
    assert len(measured) == 4
    expect(page.locator("table.list tbody tr")).to_have_count(len(measured))
    assert sorted((row[0].split()[0], row[0].rpartition(": ")[2]) for row in rows(page)) == sorted(measured)
    page.reload()
    expect(page.get_by_label("Metric")).to_have_value("failure_rate")


def test_a_check_opens_as_one_file(screens: Any, results: ResultFiles) -> None:
    page = open_check(screens, results, "determinism")
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="This check as one file").click()
    report = opened.value
    logged: list[str] = []
    report.on("console", lambda message: logged.append(message.text))
    report.wait_for_load_state()
    report.reload()
    (variant,) = results.check("determinism")["variants"]
    expect(report.locator("body")).to_contain_text(variant["verdict"])
    assert logged == []
    report.close()
