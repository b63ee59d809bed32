"""Answers that do not arrive whole: a request that another one replaced, and a body that is no JSON."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browsing import needs_chromium, sync_api

pytestmark = needs_chromium
expect = sync_api.expect
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
