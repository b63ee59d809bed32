"""Recorded scores: `mill collect` in one table, `mill diff-scores A B` row by row, `mill score RUN` computed again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from mill.api.errors import MillError, RunError, SpecError
from mill.checks.glossary import counted
from mill.cli.options import FilePath, TableFormat, chosen_output_dir, option, options, split_paths
from mill.options.definitions import refuse_unused_image
from mill.options.option import one_call
from mill.report.collect import listing, run_rows
from mill.report.pivot import INDEX, STDERR, UNCERTAINTIES, pivot, pivot_listing, read_columns, scores_of
from mill.report.score_diff import diff_listing, diff_scores, sentence
from mill.report.scores import print_outcome
from mill.report.tables import ENDINGS, FORMATS, PARQUET, TABLE, form_of, print_table, write_or_print
from mill.runs.rescore import score_again
from mill.schedule import Cell, active_jobs, read_cells, unscheduled
from mill.score.recorded_run import read_runs
from mill.store.folder import RunFolder, find_runs
from mill.support.terminal import echo, warn
from mill.tasks.load import load_builtin, load_files

_out = click.option(
    "--out", type=FilePath(), default=None, help=f"Write to a file; its ending ({', '.join(ENDINGS)}) sets the format."
)


@click.command("collect")
@option("output_dir")
@click.option("--format", "form", type=TableFormat(FORMATS), default=TABLE, show_default=True)
@_out
@click.option("--columns", default=None, metavar="NAMES", help=f"Pivot: a column for each of {', '.join(INDEX)}.")
@click.option(
    "--uncertainty",
    type=click.Choice(UNCERTAINTIES),
    default=None,
    help=f"What a cell of a pivot has beside its value. [default: {STDERR}]",
)
@click.option("--model", default="", help="Keep models whose name contains this.")
@click.option("--task", default="", help="Keep tasks and benchmarks whose name contains this.")
@click.option("--check", is_flag=True, help="List scheduled or started tasks without a complete result; exit code 1 if any.")
@click.pass_context
def collect_command(
    ctx: click.Context,
    output_dir: str | None,
    form: str,
    out: str | None,
    columns: str | None,
    uncertainty: str | None,
    model: str,
    task: str,
    check: bool,
) -> int:
    """Print every score below the output folder: model, benchmark, task, type, shots, metric, value, error, samples.

    With --columns model there is a row for each task and metric, and a column for each model. The best score is in bold (in
    plain tables it has a star), and so is every score that is not significantly worse.

    \b
    Examples:
      mill collect --output_dir results
      mill collect --columns model
      mill collect --columns model --uncertainty interval --out scores.csv
      mill collect --columns task,metric --format md --out scores.md
      mill collect --format csv > scores.csv
      mill collect --out scores.parquet --task mmlu
      mill collect --check
    """
    folder = chosen_output_dir(ctx, output_dir)
    if check:
        if out or form != TABLE or columns:
            raise SpecError("--check prints its list: leave out --out, --format and --columns")
        return _check(folder, model, task)
    if uncertainty and not columns:
        raise SpecError("--uncertainty is for a pivot: give --columns too")
    if form_of(out, form) == PARQUET and not out:
        raise SpecError("--format parquet writes a file: give --out FILE.parquet")
    named = read_columns(columns) if columns is not None else ()
    runs = read_runs(folder)
    if not runs and find_runs(folder):
        echo(f"none of the runs under {folder} can be read", err=True)
        return 1
    rows = [row for row in run_rows(runs) if model in row["model"] and (task in row["task"] or task in row["benchmark"])]
    if not rows and not out and form == TABLE:
        filters = [f"--{name} {text}" for name, text in (("model", model), ("task", task)) if text]
        echo(f"no scores under {folder}{' match ' + ' and '.join(filters) if filters else ''}")
        return 0
    if named:
        table = pivot(scores_of(runs, rows), named)
        write_or_print(pivot_listing(table, named, uncertainty or STDERR), form, out, counted(len(table.rows), "row"))
    else:
        write_or_print(listing(rows), form, out, counted(len(rows), "row"))
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


@click.command("diff-scores")
@click.argument("a", type=FilePath())
@click.argument("b", type=FilePath())
@click.option("--format", "form", type=TableFormat(FORMATS), default=TABLE, show_default=True)
@_out
def diff_scores_command(a: str, b: str, form: str, out: str | None) -> int:
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


@click.command("score")
@click.argument("run", type=FilePath())
@option("repeat_metrics")
@option("task_paths")
@options(("confirm_run_unsafe_code", "sandbox", "sandbox_image"))
@click.pass_context
def score_command(
    ctx: click.Context, /, run: str, repeat_metrics: list[str] | None, task_paths: tuple[list[str], ...], **switches: Any
) -> int:
    """Score the answers recorded in the folder RUN with the tasks as they are now; this needs no model and no data.

    \b
    Example:
      mill score results/SmolLM2-135M-Instruct-1a2b3c4d/default
      mill score results/SmolLM2-135M-Instruct-1a2b3c4d/repeats-10 --repeat_metrics pass@1,pass@3,maj@5
    """
    refuse_unused_image(switches["sandbox"], switches["sandbox_image"])
    ctx.with_resource(one_call(switches))
    load_builtin()
    load_files(tuple(split_paths(task_paths)))
    outcome = score_again(RunFolder(Path(run)), repeat_metrics)
    print_outcome(outcome)
    return int(not outcome.complete)
