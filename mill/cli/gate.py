"""`mill gate DIR`: hold saved checks against rules."""

from __future__ import annotations

from pathlib import Path

import click

from mill.api.printing import echo
from mill.api.storage import write_atomically
from mill.checks.gate import GateFailed, judge, parse_rules
from mill.checks.result import find_checks, read_check
from mill.cli.check_options import add_summary
from mill.report.checks import summary_markdown
from mill.report.junit import as_junit

EXAMPLES = """
\b
Examples:
  mill gate results/checks/compare-a-b-1234 --fail-on "flip_rate>0.02, kl_mean>0.05"
  mill gate results --fail-on "acc_drop>0.01@p<0.05" --junit gate.xml
"""


@click.command("gate", epilog=EXAMPLES)
@click.argument("folder", type=click.Path())
@click.option("--fail_on", required=True, help="Rules: figure>number, figure<number@p<0.05, comma-separated.")
@click.option("--junit", type=click.Path(), default=None, help="Also write the verdicts as JUnit XML.")
def command(folder: str, fail_on: str, junit: str | None) -> int:
    """End with exit code 3 when a check of FOLDER breaks a rule."""
    rules = parse_rules(fail_on)
    checks = [read_check(one) for one in find_checks(Path(folder))]
    judged = [(check, judge(check, rules)) for check in checks]
    if junit:
        write_atomically(Path(junit), as_junit(judged))
        echo(f"written: {junit}")
    for check, _ in judged:
        add_summary(summary_markdown(check))
    broken = [verdict.reason for _, verdicts in judged for verdict in verdicts if verdict.reason]
    if broken:
        raise GateFailed(f"{len(broken)} rules broken: {'; '.join(broken)}")
    echo(f"all rules kept on {len(checks)} checks: {', '.join(rule.text for rule in rules)}")
    return 0
