"""The page: metrics, charts, and the samples that changed most, side by side."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from mill import __version__
from mill.checks.result import Check
from mill.checks.verdict import first_sentences
from mill.report.about import About, listed
from mill.report.checks import details, explanations, metric_groups
from mill.report.html.plots import charts
from mill.report.html.run_plots import calibration_plots, section_plots, shared_plots
from mill.report.html.runs import run_body
from mill.report.html.samples import sample_list
from mill.report.html.tag import Html, joined, tag
from mill.report.runs import RunSection
from mill.report.sections import DECIDE, CheckSection, IndexRow, Section, check_section, heading, index_rows
from mill.runs.schema import Decision
from mill.support.files import write_atomically

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{}'; base-uri 'none'; form-action 'none'"


def write_report(items: Sequence[Check | Section], file: Path, *, root: Path | None = None) -> Path:
    """`root` is the folder that the user gave, if mill chose the file below it."""
    write_atomically(file, report_page(items), root=root)
    return file


def report_page(items: Sequence[Check | Section]) -> str:
    """One section for each check and run, below an index where there are several."""
    sections = [check_section(item) if isinstance(item, Check) else item for item in items]
    title = heading(sections)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY.format(_digest(_asset("script.js")))),
        tag("title", title),
        tag("style", Html(_asset("style.css"))),
    )
    rows = index_rows(sections)
    runs = [section for section in sections if isinstance(section, RunSection)]
    data = section_plots(runs)
    calibration = {id(run): calibration_plots(data, number) for number, run in enumerate(runs)}
    variants = [one for section in sections if isinstance(section, CheckSection) for one in section.check.variants]
    drawn = [variant.decision for variant in variants if variant.decision is not None]
    top = tag("header", tag("h1", title), tag("button", "Light / dark", id="theme", type="button"))
    body = tag(
        "body",
        top,
        tag(
            "main",
            [_index(rows)] if len(rows) > 1 else [],
            shared_plots(data),
            [_section(one, row, calibration.get(id(one), []), drawn) for one, row in zip(sections, rows, strict=True)],
        ),
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


def _index(rows: Sequence[IndexRow]) -> Html:
    head = tag("tr", [tag("th", name) for name in ("what", "name", "when", "result")])
    body = [
        tag(
            "tr",
            tag("td", row.kind),
            tag("td", tag("a", row.name, href=f"#{row.anchor}")),
            tag("td", row.when),
            tag("td", [tag("div", line) for line in row.result]),
        )
        for row in rows
    ]
    table = tag("table", tag("thead", head), tag("tbody", body), class_="index")
    return tag("nav", tag("div", table, class_="scroll"), aria_label="Sections")


def _section(section: Section, row: IndexRow, calibration: Sequence[Html], drawn: Sequence[Decision]) -> Html:
    if isinstance(section, CheckSection):
        check = section.check
        labels = ", ".join(variant.label for variant in check.variants)
        against = joined(" against ", tag("b", check.baseline)) if check.against else Html()
        name, sub = f"{check.command} on {', '.join(check.tasks)}", joined(tag("b", labels), against, f" · {check.created}")
        about, body = _about(section.about, listed(check.settings)), _check_body(check)
    else:
        name, sub = section.name, joined(tag("b", "eval"), f" · {section.when} · {section.path}")
        about, body = _about([("", section.about)]), run_body(section, calibration, drawn)
    return tag("section", tag("h2", name), tag("p", sub, class_="sub"), about, body, class_="check", id=row.anchor)


def _about(models: Sequence[tuple[str, About]], settings: str = "") -> Html:
    """A line for each model: what it is, where it is, and what served it."""
    lines = [
        tag("li", [tag("b", label), ": "] if label else [], *(_fact(*fact, first=fact is about[0]) for fact in about))
        for label, about in models
    ]
    lines += [tag("li", _fact("settings of the check", settings, first=True))] if settings else []
    return tag("ul", lines, class_="about")


def _fact(name: str, value: str, *, first: bool) -> Html:
    return joined("" if first else " · ", tag("i", f"{name} "), value)


def _check_body(check: Check) -> list[Html]:
    warnings = [tag("li", tag("b", variant.label), ": ", line) for variant in check.variants for line in details(variant)]
    return [
        *(tag("p", sentence, class_="verdict") for sentence in first_sentences(check.variants)),
        *(tag("p", _with_options(paragraph), class_="explained") for paragraph in explanations(check)),
        _table(check),
        tag("ul", warnings, [tag("li", warning) for warning in check.warnings], class_="warnings"),
        tag("div", charts(check), class_="charts"),
        *([sample_list(check)] if check.command != DECIDE else []),
    ]


def _with_options(text: str) -> Html:
    """Options of the command line as code, which is not broken at its hyphens."""
    return joined(*(tag("code", part) if part.startswith("--") else part for part in re.split(r"(--[a-z_]+)", text)))


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
