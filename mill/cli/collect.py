"""`mill collect`: all scores of an output folder in one table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import click

from mill.api.errors import MillError, RunError, SpecError
from mill.api.printing import echo
from mill.api.storage import write_atomically
from mill.api.warnings import warn
from mill.checks.glossary import counted
from mill.cli.options import chosen_output_dir, option
from mill.cli.values import FilePath, TableFormat
from mill.report.collect import collect, listing
from mill.report.tables import CSV, JSON, MARKDOWN, TABLE, print_table
from mill.schedule.cells import Cell, read_cells, unscheduled
from mill.schedule.jobs import active_jobs

_ENDINGS = {".csv": CSV, ".json": JSON, ".md": MARKDOWN, ".markdown": MARKDOWN}


@click.command("collect")
@option("output_dir")
@click.option("--format", "form", type=TableFormat(), default=TABLE, show_default=True)
@click.option("--out", type=FilePath(), default=None, help="Write to a file; its ending (.csv, .json, .md) sets the format.")
@click.option("--model", default="", help="Keep models whose name contains this.")
@click.option("--task", default="", help="Keep tasks and benchmarks whose name contains this.")
@click.option("--check", is_flag=True, help="List scheduled or started tasks without a complete result; exit code 1 if any.")
@click.pass_context
def command(
    ctx: click.Context, output_dir: str | None, form: str, out: str | None, model: str, task: str, check: bool
) -> int:
    """Print every score below the output folder: model, benchmark, task, type, shots, metric, value, error, samples.

    \b
    Examples:
      mill collect --output_dir results
      mill collect --format csv > scores.csv
      mill collect --out scores.md --task mmlu
      mill collect --check
    """
    folder = chosen_output_dir(ctx, output_dir)
    if check:
        if out or form != TABLE:
            raise SpecError("--check prints its list: leave out --out and --format")
        return _check(folder, model, task)
    rows = [row for row in collect(folder) if model in row["model"] and (task in row["task"] or task in row["benchmark"])]
    if out:
        ending = Path(out).suffix
        if ending and ending not in _ENDINGS and form == TABLE:
            raise SpecError(f"--out {out}: endings are .csv, .json, .md, or give --format")
        form = _ENDINGS.get(ending, CSV) if form == TABLE else form
        write_atomically(Path(out), listing(rows).text(form))
        echo(f"{len(rows)} rows written to {out}")
        return 0
    listing(rows).print(form)
    if form == TABLE and not rows:
        filters = [f"--{name} {text}" for name, text in (("model", model), ("task", task)) if text]
        echo(f"no scores under {folder}{' match ' + ' and '.join(filters) if filters else ''}")
    return 0


def _check(folder: Path, model: str, task: str) -> int:
    """List what is missing, one line per task, and whether its job is queued or running."""
    if not folder.is_dir():
        raise RunError(f"the output folder {folder} does not exist")
    cells = read_cells(folder)
    incomplete = [(cell, missing) for cell in cells.values() if (missing := cell.missing(folder))]
    state = _job_states(cell for cell, _ in incomplete)
    rows = [[cell.model, cell.shots, what, state(cell)] for cell, missing in incomplete for what in missing]
    rows += [[name, "-", f"{task_name}: {what}", "-"] for name, task_name, what in unscheduled(folder)]
    rows = [row for row in rows if model in row[0] and task in row[2]]
    if rows:
        print_table("", ("model", "shots", "missing", "job"), rows)
    echo(f"{len(rows)} results are missing" if rows else f"nothing is missing: {counted(len(cells), 'job')} scheduled")
    return int(bool(rows))


def _job_states(cells: Iterable[Cell]) -> Callable[[Cell], str]:
    try:
        active = active_jobs(cells)
    except MillError as error:
        warn(str(error))
        return lambda cell: "unknown" if cell.job else "-"
    return lambda cell: "active" if cell.job in active else "-"
