"""Answers that do not arrive whole: a request that another one replaced, and a body that is no JSON."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browsing import needs_chromium

pytestmark = needs_chromium
FAILING = """async (name) => {
    const { source } = await import("/lib.js");
    const json = async () => { throw new DOMException("the body", name); };
    window.fetch = async () => ({ ok: true, status: 200, json });
    return source.get("state", {}).then((data) => JSON.stringify(data), (error) => `${error.name}: ${error.message}`);
}"""


@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        ("AbortError", "AbortError: the body"),
        ("SyntaxError", "Error: the server answered 200 with what is no JSON"),
    ],
)
def test_a_body_that_ends_early_is_never_data(screens: Any, name: str, outcome: str) -> None:
    page = screens.open("runs")
    assert page.evaluate(FAILING, name) == outcome
