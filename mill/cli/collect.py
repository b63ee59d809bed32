"""`mill collect`: all scores of an output folder in one table."""

from __future__ import annotations

from pathlib import Path

import click

from mill.cli.options import chosen_output_dir, output_dir_option
from mill.report.collect import NUMBERS, as_csv, as_json, as_markdown, cells, collect, shown_columns
from mill.report.tables import print_table
from mill.runs.folder import write_atomically

_FORMATS = {"csv": as_csv, "json": as_json, "md": as_markdown}


@click.command("collect")
@output_dir_option()
@click.option("--format", "form", type=click.Choice(["table", *_FORMATS]), default="table", show_default=True)
@click.option(
    "--out", type=click.Path(), default=None, help="Write to a file; its ending (.csv, .json, .md) sets the format."
)
@click.option("--model", default="", help="Keep models whose name contains this.")
@click.option("--task", default="", help="Keep tasks and benchmarks whose name contains this.")
@click.pass_context
def command(ctx: click.Context, output_dir: str | None, form: str, out: str | None, model: str, task: str) -> int:
    """Print every score below the output folder: model, benchmark, task, type, shots, metric, value, error, samples.

    \b
    Examples:
      mill collect --output_dir results
      mill collect --format csv > scores.csv
      mill collect --out scores.md --task mmlu
    """
    folder = chosen_output_dir(ctx, output_dir)
    rows = [row for row in collect(folder) if model in row["model"] and (task in row["task"] or task in row["benchmark"])]
    if out:
        ending = Path(out).suffix.lstrip(".").replace("markdown", "md")
        form = ending if ending in _FORMATS and form == "table" else form
        form = "csv" if form == "table" else form
        write_atomically(Path(out), _FORMATS[form](rows))
        click.echo(f"{len(rows)} rows written to {out}")
    elif form == "table":
        columns = shown_columns(rows)
        print_table("", columns, [cells(row, columns) for row in rows], numbers=NUMBERS)
        if not rows:
            click.echo(f"no scores under {folder}")
    else:
        click.echo(_FORMATS[form](rows), nl=False)
    return 0
