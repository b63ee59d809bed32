"""How the pages write numbers, what their tables hold, and every screen with content: its route and parameters."""

from __future__ import annotations

from typing import Any

from tests.browsing import sync_api
from tests.view.browser.conftest import check_uid
from tests.view.browser.results import CHOICES, LONG, TEXTS, ResultFiles


def number(value: float | None) -> str:
    if value is None:
        return "–"
    if float(value).is_integer():
        return f"{int(value):,}"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if size < 0.001:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}".replace("e-", "e-")
    return f"{value:.{1 if size >= 100 else 2 if size >= 10 else 3}f}"


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def rows(page: Any, table: str = "table.list") -> list[list[str]]:
    """The text of each cell of a table's body."""
    script = "table => [...table.tBodies[0].rows].map(row => [...row.cells].map(cell => cell.innerText.trim()))"
    return [list(map(str, row)) for row in page.locator(table).first.evaluate(script)]


def headers(page: Any, table: str = "table.list") -> list[str]:
    script = "table => [...table.tHead.rows[0].cells].map(cell => cell.innerText.trim())"
    return [str(text) for text in page.locator(table).first.evaluate(script)]


def params(page: Any) -> dict[str, str]:
    """The parameters in the fragment of the URL."""
    script = "Object.fromEntries(new URLSearchParams(location.hash.split('?')[1] ?? ''))"
    return dict(page.evaluate(script))


expect = sync_api.expect
WIDER = """() => [document.scrollingElement.scrollWidth - innerWidth, [...document.querySelectorAll("main *")]
    .filter((one) => !one.closest(".scroll > *, .chart > *, pre > *") && one.getBoundingClientRect().right > innerWidth + 1)
    .map((one) => one.outerHTML.slice(0, 120))]"""
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
