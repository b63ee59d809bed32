"""Every screen with content: its route and parameters."""

from __future__ import annotations

from typing import Any

from tests.browsing import sync_api
from tests.view.browser.conftest import check_uid
from tests.view.browser.results import CHOICES, LONG, TEXTS, ResultFiles

expect = sync_api.expect
SCREENS = [
    "runs", "scores", "categories", "compare", "pair", "texts", "samples", "sample", "long", "dialog", "worst", "tokens",
    "load", "checks", "check",
]  # fmt: skip


def address(results: ResultFiles, uids: dict[str, str], name: str) -> tuple[str, dict[str, str]]:
    """The route of a screen with content, and its parameters."""
    a, b, both = uids["base"], uids["other"], f"{uids['base']},{uids['other']}"
    choices, texts = results.runs["base"].task(CHOICES), results.runs["base"].task(TEXTS)
    compared = {"a": uids["base compared"], "b": uids["other compared"]}
    routes: dict[str, tuple[str, dict[str, str]]] = {
        "runs": ("runs", {"order": "name"}),
        "scores": ("scores", {"runs": both}),
        "categories": ("scores", {"runs": both, "task": choices}),
        "compare": ("compare", {"a": a, "b": b, "cell": "both_wrong", "margin": "0.1"}),
        "pair": ("pair", {"a": a, "b": b, "t": choices, "id": "quiz-3"}),
        "texts": ("pair", {"a": a, "b": b, "t": texts, "id": "story-2"}),
        "samples": ("samples", {"run": a, "status": "wrong", "sort": "margin", "desc": "1"}),
        "sample": ("sample", {"run": a, "t": texts, "id": "story-1"}),
        "long": ("sample", {"run": a, "t": choices, "id": LONG}),
        "dialog": ("sample", {"run": uids["agent"], "t": "toy_agent", "id": "0"}),
        "worst": ("tokens", compared),
        "tokens": ("tokens", {**compared, "t": texts, "id": "story-2", "at": "1"}),
        "load": ("load", {"runs": both, "price_in": "1"}),
        "checks": ("checks", {"metric": "failure_rate"}),
        "check": ("checks", {"check": check_uid(results, "compare"), "fail_on": "match_rate<0.9"}),
    }
    return routes[name]


def open_route(screens: Any, results: ResultFiles, uids: dict[str, str], name: str, **options: Any) -> Any:
    route, params = address(results, uids, name)
    page = screens.open(route, **options, **params)
    settle(page)
    return page


def settle(page: Any) -> None:
    expect(page.locator("main h1")).to_be_visible()
    expect(page.locator(".loading")).to_have_count(0)


def content_of(page: Any) -> str:
    return str(page.locator("main").inner_text())
