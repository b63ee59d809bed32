"""`mill ls`: models, packaged configs, tasks and recorded runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import click

from mill.api.errors import MillError, RunError, SpecError, UnknownName, install_command
from mill.api.registry import import_file, models, tasks
from mill.api.task import Benchmark
from mill.cli.options import TableFormat, chosen_output_dir, option, split_paths
from mill.models.spec.backends import backend_info, backends, task_types
from mill.models.spec.open import described_arguments, load_model_from_file
from mill.models.spec.parse import packaged_configs
from mill.report.tables import TABLE, Listing
from mill.store.folder import find_runs
from mill.store.schema import Manifest, SessionEntry
from mill.support.terminal import warn
from mill.support.validate import convert
from mill.tasks.hooks import check_metrics
from mill.tasks.load import SOURCES, load_builtin, load_files, make_task, source, split_name
from mill.tasks.multiple_choice import is_generated


@click.command("ls")
@click.argument("what", type=click.Choice(["models", "tasks", "runs"]), default="tasks")
@click.argument("filter_text", metavar="[FILTER]", default="")
@click.option("--configs", is_flag=True, help="With models: list the packaged configs, which are models by name.")
@click.option("--format", "form", type=TableFormat(), default=TABLE, show_default=True)
@option("output_dir")
@option("task_paths")
@click.pass_context
def command(
    ctx: click.Context,
    what: str,
    filter_text: str,
    configs: bool,
    form: str,
    output_dir: str | None,
    task_paths: tuple[list[str], ...],
) -> int:
    """List models, tasks (the default) or runs; FILTER keeps the rows that contain it, or whose name matches a pattern such
    as 'gsm8k*'. The name of a backend lists its arguments. Of mmlu_gen and other benchmarks by the generated letter, the
    subjects are listed with a FILTER.

    The name of a packaged config is a model: mill eval smollm2_135m_instruct gsm8k. A file or folder of that name in the
    current folder wins; ./NAME is always the folder, and hf[path=NAME] always the model of the hub.

    \b
    Examples:
      mill ls tasks mmlu_high
      mill ls tasks 'gsm8k*'
      mill ls tasks lm-eval:bbh
      mill ls models
      mill ls models vllm
      mill ls models --configs
      mill ls runs --output_dir results
    """
    load_builtin()
    load_files(tuple(split_paths(task_paths)))
    if what == "tasks" and filter_text in SOURCES:
        filter_text += ":"
    if configs and what != "models":
        raise SpecError("--configs goes with models: mill ls models --configs")
    wanted, named = filter_text.lower(), split_name(filter_text) if what == "tasks" else None
    rows: list[Row]
    if configs:
        columns, rows = ["config", "backend", "model", "needs"], _configs()
    elif what == "models" and filter_text in models:
        columns, rows = ["argument", "default", "meaning"], [list(row) for row in described_arguments(filter_text)]
        wanted = ""
    elif what == "models":
        columns, rows = ["backend", "aliases", "task types", "install"], _models()
    elif what == "runs":
        columns, rows = ["run", "tasks", "samples", "failed", "last session"], _runs(chosen_output_dir(ctx, output_dir))
    elif named is not None:
        columns, rows, wanted = ["task", "kind"], _tasks_of_source(*named), ""  # a source searches by itself
    else:
        columns, rows = ["task", "type", "shots", "metrics"], _tasks(every=bool(filter_text))
    shown = [row for row in rows if _matches(row, wanted)]
    if filter_text and not shown:
        hints = [f"`mill ls {what}` lists all", *(_elsewhere(filter_text) if what == "tasks" else [])]
        raise UnknownName(what.removesuffix("s"), filter_text, [row[0] for row in rows], hint="; ".join(hints))
    _listing(columns, shown).print(form)
    return 0


def _matches(row: Row, wanted: str) -> bool:
    """A pattern is for the name, a text for any part of the row."""
    if any(char in wanted for char in "*?["):
        return fnmatchcase(_text(row[0]).lower(), wanted)
    return wanted in " ".join(map(_text, row)).lower()


_FOREIGN = "(from a file or another package)"
MOST_IN_CELL = 4  # names of a list that a table shows

Row = list[Any]
"""The values of a row: texts, numbers, or lists of texts; None where there is none."""


def _listing(columns: Sequence[str], rows: Sequence[Row]) -> Listing:
    names = [column.replace(" ", "_") for column in columns]
    data = [dict(zip(names, row, strict=True)) for row in rows]
    cells = [list(map(_cell, row)) for row in rows]
    return Listing(data, names, columns, cells, numbers=("shots", "samples", "failed"), group=("run",))


def _text(value: Any) -> str:
    if value is None:
        return ""
    return ", ".join(value) if isinstance(value, list) else str(value)


def _cell(value: Any) -> str:
    """A value in a table: of a long list the first entries."""
    if isinstance(value, list) and len(value) > MOST_IN_CELL + 1:
        return f"{_text(value[:MOST_IN_CELL])} and {len(value) - MOST_IN_CELL} more"
    return _text(value)


def _models() -> list[Row]:
    rows: list[Row] = []
    for backend in backends():
        served = [task_type.value for task_type in task_types(backend)]
        install = install_command(backend.extra) if backend.extra else "(core)" if models.is_builtin(backend.name) else None
        rows.append([backend.name, list(backend.aliases), served or [_FOREIGN], install])
    described = {name for backend in backends() for name in backend.names}
    return rows + [[name, [], [_FOREIGN], None] for name in models if name not in described]


def _configs() -> list[Row]:
    """The packaged configs. What one needs: packages to install, and what its file states as `needs`."""
    rows: list[Row] = []
    for name, file in packaged_configs().items():
        model = load_model_from_file(name)
        info = backend_info(model["type"])
        needs = [install_command(info.extra)] if info and info.extra else []
        needs += filter(None, [getattr(import_file(file, "config file"), "needs", "")])
        weights = str(model.get("path") or model.get("model") or "").removeprefix(f"{file.parents[4]}/")
        rows.append([name, model["type"], weights, "; ".join(needs)])
    return rows


def _tasks(*, every: bool) -> list[Row]:
    """All tasks. Members of a benchmark that are renderings by letter are listed where `every` name is: there is one for
    each member of the benchmark itself."""
    rows: list[Row] = []
    benchmarks = [entry for name in tasks if isinstance(entry := tasks.get(name), Benchmark)]
    members = {member for benchmark in benchmarks for member in benchmark.tasks}
    for name in tasks:
        entry = tasks.get(name)
        if not every and name in members and is_generated(name):
            continue
        if isinstance(entry, Benchmark):
            rows.append([name, f"benchmark of {len(entry.tasks)}", None, []])
        else:
            task = make_task(name)
            check_metrics(task)
            judged = ["judge"] if task.judge is not None else []
            rows.append([name, task.task_type.value, task.n_shots, [*task.metrics, *judged]])
    return rows


def _elsewhere(text: str) -> list[str]:
    """How to list what other packages have of a name."""
    found = []
    for name in SOURCES:
        with suppress(MillError):  # not installed
            if count := len(source(name).listed(text)):
                found.append(f"`mill ls tasks {name}:{text}` lists {count:,}")
    return found


def _tasks_of_source(name: str, text: str) -> list[Row]:
    """Tasks that another package defines."""
    rows: list[Row] = [list(row) for row in source(name).listed(text)]
    if not rows:
        source(name).names(text)  # refuses an unknown name with the nearest ones
    return rows


def _runs(output_dir: Path) -> list[Row]:
    if not output_dir.is_dir():
        raise RunError(f"the output folder {output_dir} does not exist")
    rows: list[Row] = []
    for folder in find_runs(output_dir):
        try:
            manifest, results = convert(folder.manifest(), Manifest, folder.path, RunError), folder.results()
        except RunError as error:  # one damaged run does not hide the others
            warn(f"left out: {error}")
            continue
        last = manifest.sessions[-1] if manifest.sessions else SessionEntry(ended="running or killed")
        counts = [sum(getattr(task, count) for task in results.tasks.values()) for count in ("n", "failed")]
        rows.append([str(folder.path), list(manifest.tasks), *counts, f"{last.started} {last.ended}"])
    return rows
