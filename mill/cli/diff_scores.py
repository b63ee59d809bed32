"""`mill diff-scores A B`: the scores of two runs or output folders, row by row."""

from __future__ import annotations

from pathlib import Path

import click

from mill.api.errors import SpecError
from mill.checks.glossary import counted
from mill.cli.values import FilePath, TableFormat
from mill.report.listing import ENDINGS, FORMATS, PARQUET, TABLE, form_of, write_or_print
from mill.report.score_diff import diff_listing, diff_scores, sentence
from mill.support.terminal import echo, warn


@click.command("diff-scores")
@click.argument("a", type=FilePath())
@click.argument("b", type=FilePath())
@click.option("--format", "form", type=TableFormat(FORMATS), default=TABLE, show_default=True)
@click.option(
    "--out", type=FilePath(), default=None, help=f"Write to a file; its ending ({', '.join(ENDINGS)}) sets the format."
)
def command(a: str, b: str, form: str, out: str | None) -> int:
    """Compare the recorded scores of two runs, or of two output folders: a row for each task and metric, with both values,
    the difference B - A, its 95 % interval, and the p-value before and after Holm's correction over all rows.

    Samples are paired by their data where both runs have them (McNemar's test for values of 0 and 1, Student's for others),
    else the two scores are compared as independent estimates. No model is needed.

    \b
    Examples:
      mill diff-scores results/model-1a2b3c4d/default results/model-int4-5e6f7a8b/default
      mill diff-scores results-before results-after
      mill diff-scores results-before results-after --format md > diff.md
    """
    if form_of(out, form) == PARQUET and not out:
        raise SpecError("--format parquet writes a file: give --out FILE.parquet")
    found = diff_scores(Path(a), Path(b))
    for line in found.warnings:
        warn(line)
    write_or_print(diff_listing(found), form, out, counted(len(found.rows), "row"))
    if out:
        echo(sentence(found))
    return 0
