"""The page: metrics, charts, and the samples that changed most, side by side."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from mill import __version__
from mill.api.storage import write_atomically
from mill.checks.result import Check
from mill.checks.verdict import first_sentences
from mill.report.checks import details, explanations, metric_groups
from mill.report.html.plots import charts
from mill.report.html.samples import sample_list
from mill.report.html.tag import Html, joined, tag

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{}'; base-uri 'none'; form-action 'none'"


def write_report(checks: Sequence[Check], file: Path, *, root: Path | None = None) -> Path:
    """`root` is the folder that the user gave, if mill chose the file below it."""
    write_atomically(file, report_page(checks), root=root)
    return file


def report_page(checks: Sequence[Check]) -> str:
    heading = f"mill {checks[0].command}" if len(checks) == 1 else f"{len(checks)} checks"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY.format(_digest(_asset("script.js")))),
        tag("title", heading),
        tag("style", Html(_asset("style.css"))),
    )
    top = tag("header", tag("h1", heading), tag("button", "Light / dark", id="theme", type="button"))
    body = tag(
        "body",
        top,
        tag("main", [_section(check) for check in checks]),
        tag("footer", f"mill {__version__}"),
        tag("script", Html(_asset("script.js"))),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


@cache
def _asset(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    """The digest by which the policy allows the page's own script, and no other."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _section(check: Check) -> Html:
    labels = ", ".join(variant.label for variant in check.variants)
    against = joined(" against ", tag("b", check.baseline)) if check.against else Html()
    warnings = [tag("li", tag("b", variant.label), ": ", line) for variant in check.variants for line in details(variant)]
    return tag(
        "section",
        tag("h2", f"{check.command} on {', '.join(check.tasks)}"),
        tag("p", tag("b", labels), against, f" · {check.created}", class_="sub"),
        [tag("p", sentence, class_="verdict") for sentence in first_sentences(check.variants)],
        [tag("p", paragraph, class_="explained") for paragraph in explanations(check)],
        _table(check),
        tag("ul", warnings, [tag("li", warning) for warning in check.warnings], class_="warnings"),
        tag("div", charts(check), class_="charts"),
        sample_list(check),
        class_="check",
    )


def _table(check: Check) -> Html:
    columns = len(check.variants) + 1
    head = tag("tr", tag("th"), [tag("th", variant.label) for variant in check.variants])
    rows: list[Html] = []
    for group, members in metric_groups(check.variants):
        rows.append(tag("tr", tag("th", group, colspan=columns), class_="group"))
        rows += [tag("tr", tag("th", row.title, title=row.about), [_cell(*cell) for cell in row.cells]) for row in members]
    return tag("div", tag("table", tag("thead", head), tag("tbody", rows), class_="metrics"), class_="scroll")


def _cell(value: str, interval: str) -> Html:
    return tag("td", value, [tag("small", f" {interval}")] if interval else [])
