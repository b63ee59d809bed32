"""`mill report DIR`: saved checks and runs as a page, a table, or data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from mill.api.errors import RunError
from mill.checks.gate import Rule, judge, parse_rules
from mill.cli.options import FilePath, TableFormat
from mill.report.checks import as_junit
from mill.report.sections import CheckSection, RunSection, Section, find_sections, report_markdown
from mill.support.files import json_text, write_atomically
from mill.support.terminal import echo, echo_data

SUFFIXES = {"html": ".html", "json": ".json", "md": ".md", "junit": ".xml"}
EXAMPLES = """
\b
Examples:
  mill report results                             (every check and run below, as one page)
  mill report results/SmolLM2-135M-Instruct-1a2b3c4d/default
  mill report results/checks/compare-a-b-1234 --format md
  mill report results --format junit --fail_on "flip_rate>0.02" --output checks.xml
"""


@click.command("report", epilog=EXAMPLES)
@click.argument("folder", type=FilePath())
@click.option(
    "--format", "form", type=TableFormat(list(SUFFIXES)), default="html", show_default=True, help="Format of the report."
)
@click.option(
    "--output", type=FilePath(), default=None, help="File to write; - for the terminal. [default: report.* in the folder]"
)
@click.option("--fail_on", default=None, help="Rules, whose outcomes md and junit show. `mill gate` sets the exit code.")
@click.option("--require", default=None, help="Rules that the interval must show.")
def command(folder: str, form: str, output: str | None, fail_on: str | None, require: str | None) -> int:
    """Render the checks and evaluation runs of FOLDER: a check, a run, or a folder of them, with an index where there are
    several. Checks have the outcomes of rules where they are given (md, junit); runs have their scores and failures, on the
    page also the first 5,000 samples of each task; the JSON of a folder has its checks, or its runs where it has no
    check. The page is that of `mill view` and needs no network and no model."""
    path = Path(folder)
    rules = parse_rules(fail_on, require)
    if form == "html":
        from mill.view.offline import results_page

        text = results_page(path).decode()
    else:
        text = _rendered(path, find_sections(path), form, rules)
    if output == "-":
        echo_data(text if text.endswith("\n") else f"{text}\n")
        return 0
    parent = path if path.is_dir() else path.parent
    file = Path(output) if output else parent / f"report{SUFFIXES[form]}"
    write_atomically(file, text, root=None if output else parent)
    echo(f"written: {file}")
    return 0


def _rendered(path: Path, sections: Sequence[Section], form: str, rules: list[Rule]) -> str:
    checks = [section.check for section in sections if isinstance(section, CheckSection)]
    runs = [section for section in sections if isinstance(section, RunSection)]
    if form == "md":
        return report_markdown(sections, lambda check: judge(check, rules))
    if form == "json":
        texts = [check.to_json() for check in checks] or [json_text(run.to_dict(), indent=1) + "\n" for run in runs]
        return texts[0] if len(texts) == 1 else "[\n" + ",\n".join(texts) + "]\n"
    if not checks:
        raise RunError(f"{path} has evaluation runs and no check; junit is the form of checks: use html, md or json")
    return as_junit([(check, judge(check, rules)) for check in checks])
