"""`mill report DIR`: saved checks as a page, a table, or data."""

from __future__ import annotations

from pathlib import Path

import click

from mill.api.printing import echo, echo_data
from mill.api.storage import write_atomically
from mill.checks.gate import Rule, judge, parse_rules
from mill.checks.result import Check, find_checks, read_check
from mill.cli.values import FilePath

SUFFIXES = {"html": ".html", "json": ".json", "md": ".md", "junit": ".xml"}
EXAMPLES = """
\b
Examples:
  mill report results                             (every check below, as one page)
  mill report results/checks/compare-a-b-1234 --format md
  mill report results --format junit --fail_on "flip_rate>0.02" --output checks.xml
"""


@click.command("report", epilog=EXAMPLES)
@click.argument("folder", type=FilePath())
@click.option(
    "--format", "form", type=click.Choice(list(SUFFIXES)), default="html", show_default=True, help="Format of the report."
)
@click.option(
    "--output", type=FilePath(), default=None, help="File to write; - for the terminal. [default: report.* in the folder]"
)
@click.option("--fail_on", default=None, help="Rules, whose outcomes md and junit show. `mill gate` sets the exit code.")
@click.option("--require", default=None, help="Rules that the interval must show.")
def command(folder: str, form: str, output: str | None, fail_on: str | None, require: str | None) -> int:
    """Render the checks of FOLDER, with the outcomes of rules where they are given (md, junit). The page needs no network
    and no model."""
    path = Path(folder)
    rules = parse_rules(fail_on, require)
    checks = [read_check(file) for file in find_checks(path)]
    text = _rendered(checks, form, rules)
    if output == "-":
        echo_data(text if text.endswith("\n") else f"{text}\n")
        return 0
    parent = path if path.is_dir() else path.parent
    file = Path(output) if output else parent / f"report{SUFFIXES[form]}"
    write_atomically(file, text, root=None if output else parent)
    echo(f"written: {file}")
    return 0


def _rendered(checks: list[Check], form: str, rules: list[Rule]) -> str:
    from mill.report.checks import summary_markdown
    from mill.report.html import report_page
    from mill.report.junit import as_junit

    if form == "html":
        return report_page(checks)
    if form == "md":
        return "\n".join(summary_markdown(check, judge(check, rules)) for check in checks)
    if form == "junit":
        return as_junit([(check, judge(check, rules)) for check in checks])
    if len(checks) == 1:
        return checks[0].to_json()
    return "[\n" + ",\n".join(check.to_json() for check in checks) + "]\n"
