"""A table as a small page of its own, without scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mill.report.html.tag import Html, tag

if TYPE_CHECKING:
    from mill.report.listing import Listing

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
STYLE = """
:root { color-scheme: light dark; }
body { font: 14px/1.5 system-ui, sans-serif; margin: 24px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 4px 12px; text-align: left; overflow-wrap: anywhere; }
tr > * { border-bottom: 1px solid light-dark(#e4e5e8, #33363c); }
thead th { vertical-align: bottom; border-bottom: 2px solid light-dark(#747881, #878b94); max-width: 240px; }
td { white-space: nowrap; }
.number { text-align: right; }
p { color: light-dark(#5c5f66, #a9adb6); max-width: 90ch; }
"""


def listing_page(listing: Listing) -> str:
    kinds = ["number" if column in listing.numbers else None for column in listing.shown]
    head = tag("tr", [tag("th", name, class_=kind) for name, kind in zip(listing.shown, kinds, strict=True)])
    body = [
        tag("tr", [_cell(cell, kinds[column], (number, column) in listing.bold) for column, cell in enumerate(row)])
        for number, row in enumerate(listing.cells)
    ]
    top = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("title", listing.title),
        tag("style", Html(STYLE)),
    )
    notes = [tag("p", note) for note in listing.notes]
    content = tag("body", tag("table", tag("thead", head), tag("tbody", body)), notes)
    return f"<!doctype html>\n{tag('html', top, content, lang='en')}\n"


def _cell(text: str, kind: str | None, bold: bool) -> Html:
    return tag("td", [tag("b", text)] if bold else text, class_=kind)
