"""`mill ls`: what there is to run, and what was run."""

from __future__ import annotations

from pathlib import Path

import click

from mill.api.errors import RunError, UnknownName, install_command
from mill.api.registry import models, tasks
from mill.api.task import Benchmark
from mill.api.validate import convert
from mill.api.warnings import warn
from mill.cli.options import chosen_output_dir, output_dir_option, split_paths, task_paths_option
from mill.models.spec.backends import BACKENDS
from mill.report.tables import print_table
from mill.runs.folder import find_runs
from mill.runs.schema import Manifest, SessionEntry
from mill.tasks.hooks import check_metrics
from mill.tasks.load import load_builtin, load_files, make_task


@click.command("ls")
@click.argument("what", type=click.Choice(["models", "tasks", "runs"]), default="tasks")
@click.argument("filter_text", metavar="[FILTER]", default="")
@output_dir_option()
@task_paths_option()
@click.pass_context
def command(
    ctx: click.Context, what: str, filter_text: str, output_dir: str | None, task_paths: tuple[list[str], ...]
) -> int:
    """List models, tasks (the default) or runs; FILTER keeps the rows that contain it.

    \b
    Examples:
      mill ls tasks mmlu_high
      mill ls models
      mill ls runs --output_dir results
    """
    load_builtin()
    load_files(split_paths(task_paths))
    columns, rows = {
        "models": lambda: (["backend", "also", "serves", "install"], _models()),
        "tasks": lambda: (["task", "type", "shots", "metrics"], _tasks()),
        "runs": lambda: (
            ["run", "tasks", "samples", "failed", "last session"],
            _runs(chosen_output_dir(ctx, output_dir)),
        ),
    }[what]()
    kept = [row for row in rows if filter_text.lower() in " ".join(row).lower()]
    if filter_text and not kept:
        raise UnknownName(what.removesuffix("s"), filter_text, [row[0] for row in rows], hint=f"`mill ls {what}` lists all")
    print_table("", columns, kept, numbers=("shots", "samples", "failed"))
    return 0


def _models() -> list[list[str]]:
    rows = []
    for backend in BACKENDS:
        served = ", ".join(task_type.value for task_type in backend.task_types)
        install = install_command(backend.extra) if backend.extra else "(core)"
        if not backend.shipped:
            install = "(not in this version)"
        rows.append([backend.names[0], ", ".join(backend.names[1:]), served, install])
    builtin = {name for backend in BACKENDS for name in backend.names}
    return rows + [[name, "", "(from a file or another package)", ""] for name in models if name not in builtin]


def _tasks() -> list[list[str]]:
    rows = []
    for name in tasks:
        entry = tasks.get(name)
        if isinstance(entry, Benchmark):
            rows.append([name, f"benchmark of {len(entry.tasks)}", "", ""])
        else:
            task = make_task(name)
            check_metrics(task)
            judged = ["judge"] if task.judge is not None else []
            rows.append([name, task.task_type.value, str(task.n_shots), ", ".join([*task.metrics, *judged])])
    return rows


def _runs(output_dir: Path) -> list[list[str]]:
    if not output_dir.is_dir():
        raise RunError(f"the output folder {output_dir} does not exist")
    rows = []
    for folder in find_runs(output_dir):
        try:
            known, results = convert(folder.manifest(), Manifest, folder.path, RunError), folder.results()
        except RunError as error:  # one damaged run does not hide the others
            warn(f"left out: {error}")
            continue
        last = known.sessions[-1] if known.sessions else SessionEntry(ended="running or killed")
        counts = [sum(getattr(task, count) for task in results.tasks.values()) for count in ("n", "errors")]
        rows.append([str(folder.path), ", ".join(known.tasks), *map(str, counts), f"{last.started} {last.ended}"])
    return rows
