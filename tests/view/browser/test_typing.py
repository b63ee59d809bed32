"""Fields for search: they follow the address, and no letter reaches another screen. Answers that do not arrive whole: a
request that another one replaced, and a body that is no JSON."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browsing import needs_chromium, sync_api
from tests.view.browser.shown import params

pytestmark = needs_chromium
expect = sync_api.expect


def test_another_value_of_the_address_replaces_the_text(screens: Any) -> None:
    page = screens.open("runs", name="sight")
    expect(page.get_by_label("Filter")).to_have_value("sight")
    page.evaluate("() => { location.hash = '#/runs?name=fail'; }")
    expect(page.get_by_label("Filter")).to_have_value("fail")
    page.get_by_label("Filter").fill("")
    page.wait_for_function("() => !location.hash.includes('name')")
    page.evaluate("() => { location.hash = '#/runs?name=fail'; }")
    expect(page.get_by_label("Filter")).to_have_value("fail")


def test_text_for_one_screen_does_not_filter_the_next_one(screens: Any) -> None:
    page = screens.open("runs")
    page.get_by_label("Filter").fill("sight")
    page.get_by_role("link", name="Scores", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Scores")
    page.wait_for_timeout(400)  # longer than a field waits for more text
    assert "name" not in params(page)


ANSWERING = """(name) => {
    const json = async () => { throw new DOMException("the body", name); };
    window.fetch = async () => ({ ok: true, status: 200, json });
}"""


@pytest.mark.parametrize("name", ["AbortError", "SyntaxError"])
def test_a_body_that_ends_early_is_never_data(screens: Any, name: str) -> None:
    page = screens.open("runs")
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    page.evaluate(ANSWERING, name)
    page.keyboard.press("4")
    expect(page.get_by_role("heading", name="Samples")).to_be_visible()
    if name == "SyntaxError":
        expect(page.get_by_role("alert").first).to_contain_text("the server answered 200 with what is no JSON")
    else:
        expect(page.locator(".loading")).to_be_visible()
        expect(page.get_by_role("alert")).to_have_count(0)
