"""`mill report DIR`: saved checks as a page, a table, or data."""

from __future__ import annotations

from pathlib import Path

import click

from mill.api.printing import echo, echo_data
from mill.api.storage import write_atomically
from mill.checks.gate import judge, parse_rules
from mill.checks.result import Check, find_checks, read_check
from mill.cli.values import FilePath

SUFFIXES = {"html": ".html", "json": ".json", "md": ".md", "junit": ".xml"}
EXAMPLES = """
\b
Examples:
  mill report results                             (every check below, as one page)
  mill report results/checks/compare-a-b-1234 --format md
  mill report results --format junit --fail-on "flip_rate>0.02" --output checks.xml
"""


@click.command("report", epilog=EXAMPLES)
@click.argument("folder", type=FilePath())
@click.option(
    "--format", "form", type=click.Choice(list(SUFFIXES)), default="html", show_default=True, help="What to write."
)
@click.option(
    "--output", type=FilePath(), default=None, help="Where to. [default: report.* in the folder; - for the terminal]"
)
@click.option("--fail_on", default=None, help="Rules whose verdicts a JUnit file tells.")
def command(folder: str, form: str, output: str | None, fail_on: str | None) -> int:
    """Render the checks of FOLDER. It opens without a network and needs no model."""
    place = Path(folder)
    checks = [read_check(one) for one in find_checks(place)]
    text = _rendered(checks, form, fail_on)
    if output == "-":
        echo_data(text if text.endswith("\n") else f"{text}\n")
        return 0
    file = Path(output) if output else (place if place.is_dir() else place.parent) / f"report{SUFFIXES[form]}"
    write_atomically(file, text)
    echo(f"written: {file}")
    return 0


def _rendered(checks: list[Check], form: str, fail_on: str | None) -> str:
    from mill.report.checks import summary_markdown
    from mill.report.html import report_page
    from mill.report.junit import as_junit

    if form == "html":
        return report_page(checks)
    if form == "md":
        return "\n".join(summary_markdown(check) for check in checks)
    if form == "junit":
        rules = parse_rules(fail_on) if fail_on else []
        return as_junit([(check, judge(check, rules)) for check in checks])
    if len(checks) == 1:
        return checks[0].to_json()
    return "[\n" + ",\n".join(check.to_json() for check in checks) + "]\n"
