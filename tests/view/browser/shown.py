"""How the pages write numbers, and what tables of a page hold."""

from __future__ import annotations

from typing import Any


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
