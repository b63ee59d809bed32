"""`mill gate DIR`: test saved checks against rules."""

from __future__ import annotations

from pathlib import Path

import click

from mill.api.errors import SpecError
from mill.checks.gate import conclude, judge_all, parse_rules
from mill.checks.result import find_checks, read_check
from mill.checks.verdict import first_sentences
from mill.cli.checks import add_summary, rule_options
from mill.cli.values import FilePath
from mill.report.junit import as_junit
from mill.report.markdown import summary_markdown
from mill.support.files import write_atomically
from mill.support.terminal import echo

EXAMPLES = """
\b
Examples:
  mill gate results/checks/compare-a-b-1234 --require "acc_drop<0.01, kl_mean<0.05"
  mill gate results --fail_on "flip_rate>0.02, acc_drop>0.01@p<0.05" --junit gate.xml
"""


@click.command("gate", epilog=EXAMPLES)
@click.argument("folder", type=FilePath())
@rule_options()
@click.option("--junit", type=FilePath(), default=None, help="Also write the outcomes as JUnit XML.")
def command(folder: str, fail_on: str | None, require: str | None, strict: bool | None, junit: str | None) -> int:
    """End with exit code 3 when a check of FOLDER breaks a rule, and with 5 when its samples are too few to decide."""
    rules = parse_rules(fail_on, require)
    if not rules:
        raise SpecError('give rules: --require "acc_drop<0.01", or --fail_on "flip_rate>0.02"')
    checks = [read_check(file) for file in find_checks(Path(folder))]
    judged = judge_all(checks, rules)
    if junit:
        write_atomically(Path(junit), as_junit(judged))
        echo(f"written: {junit}")
    for check, outcomes in judged:
        add_summary(summary_markdown(check, outcomes))
        for sentence in first_sentences(check.variants):
            echo(f"{check.name}: {sentence}")
    echo(conclude(judged, strict=bool(strict)))
    return 0
