"""`mill schedule MODELS TASKS`: a matrix of runs on a cluster."""

from __future__ import annotations

import importlib.util
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from mill.api.errors import MissingPackage, SpecError
from mill.checks.glossary import counted
from mill.cli.main import run as run_command
from mill.cli.options import FilePath, chosen_output_dir, given_options, option, options
from mill.models.spec.open import resolve_spec
from mill.models.spec.parse import make_spec
from mill.options.definitions import EvalOptions
from mill.options.option import format_pairs, split_names
from mill.report.tables import print_table
from mill.runs.plan import open_for_run, plan_run
from mill.schedule import (
    FOLDER,
    Cell,
    Cluster,
    active_jobs,
    cell_of,
    read_cells,
    read_cluster,
    remember_cells,
    submit,
)
from mill.store.folder import RunFolder
from mill.store.session import SessionFile
from mill.support.files import refuse_links
from mill.support.terminal import echo
from mill.tasks.load import expand_task_files, load_builtin, load_files, select

DONE, ACTIVE, TO_DO = "done", "active", "to do"
PASSED_ON = (
    "limit", "seed", "batch_size", "gen_kwargs", "max_tokens", "system_prompt", "apply_chat_template", "sandbox",
    "sandbox_image", "no_remote_code", "confirm_run_unsafe_code",
)  # fmt: skip
_COLUMNS = ("model", "task", "shots", "state", "missing")

EXAMPLES = """
\b
Examples:
  mill schedule org/small,org/large mmlu,gsm8k --n_shots 0,5 --cluster cluster.yaml
  mill schedule org/small mmlu,gsm8k --n_shots 0,5 --dry_run
  mill collect --check

\b
A cluster file, all of it optional:
  partition: gpu
  minutes: 240
  gpus: 1
  at_once: 8
  setup: ["module load cuda"]
"""


@click.command("schedule", epilog=EXAMPLES)
@click.argument("models")
@click.argument("tasks")
@click.option("--n_shots", default=None, help="Numbers of few-shot examples, comma-separated. [default: each task's own]")
@option("output_dir")
@click.option("--cluster", type=FilePath(), default=None, help="YAML file with the limits of a job and of arrays.")
@click.option("--dry_run", is_flag=True, help="Show the matrix and what is missing; submit nothing.")
@options((*PASSED_ON, "task_paths"))
@click.pass_context
def command(
    ctx: click.Context,
    /,
    models: str,
    tasks: str,
    n_shots: str | None,
    output_dir: str | None,
    cluster: str | None,
    dry_run: bool,
    **values: Any,
) -> int:
    """Run every combination of MODELS, TASKS and --n_shots that has no complete result yet, each as a job of SLURM.

    The same command again submits only what failed or never ran, not jobs that are queued or running. A job whose time is
    over is queued again and resumes.
    """
    folder = chosen_output_dir(ctx, output_dir).resolve()
    if not dry_run and importlib.util.find_spec("submitit") is None:
        raise MissingPackage("mill schedule", "submitit", "slurm")
    limits = read_cluster(cluster)
    given = given_options(ctx, values, EvalOptions)
    cells = _cells(split_names(models), split_names(tasks), _shots(n_shots), folder, given)
    if dry_run:
        states = _states(cells, folder)
        _show(cells, states, folder)
        count = sum(state == TO_DO for state in states.values())
        arrays = -(-count // limits.array_size)
        jobs = f"{count} of {counted(len(cells), 'job')} in {counted(arrays, 'array')}"
        echo(f"would submit {jobs}: {', '.join(f'{name}={value}' for name, value in limits.parameters('mill').items())}")
        return 0
    refuse_links(folder / FOLDER, folder)
    # Two commands that submit at the same time would both find a cell missing.
    with SessionFile(RunFolder(folder / FOLDER), [FOLDER]) as turn:
        turn.take_turn()
        states = _states(cells, folder)
        remember_cells(folder, cells)
        todo = [cell for cell in cells if states[cell.key] == TO_DO]
        if not todo:
            _show(cells, states, folder)
            return 0
        return _submit(todo, limits, folder)


def _cells(models: list[str], tasks: list[str], shots: list[int | None], folder: Path, given: dict[str, Any]) -> list[Cell]:
    """Plan the whole matrix: everything that can be refused is refused before the first job is submitted."""
    if not models or not tasks:
        raise SpecError("give models and tasks: mill schedule MODELS TASKS")
    options = EvalOptions(**given)
    paths = tuple(str(Path(path).resolve()) for path in options.task_paths)
    load_builtin()
    load_files(paths)
    cells = []
    for text in models:
        spec = resolve_spec(make_spec(text))
        how = replace(options.run, output_dir=folder)
        spec, model, chat = open_for_run(spec, select(expand_task_files(tasks)), how, "--apply_chat_template")
        for task in tasks:
            for number in shots:
                settings = replace(how.settings, n_shots=number, apply_chat_template=bool(chat))
                run = plan_run(spec, model, select(expand_task_files([task])), replace(how, settings=settings))
                argv = ["eval", text, task, "--output_dir", str(folder), "--quiet", *_eval_options(number, given, paths)]
                cells.append(cell_of(run, text, task, number, argv, folder))
    return list({cell.key: cell for cell in cells}.values())  # each cell once


def _eval_options(n_shots: int | None, given: dict[str, Any], paths: tuple[str, ...]) -> list[str]:
    """The options of a cell's `mill eval`."""
    passed = {name: given[name] for name in PASSED_ON if name in given}
    words = [] if n_shots is None else ["--n_shots", str(n_shots)]
    for name, value in passed.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not False:
            words += [f"--{name}", format_pairs(value) if isinstance(value, dict) else str(value)]
    return words + [word for path in paths for word in ("--task_paths", path)]


def _shots(text: str | None) -> list[int | None]:
    if text is None:
        return [None]
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() for part in parts):
        raise SpecError(f"--n_shots {text}: give counts, comma-separated, such as 0,5")
    return list(dict.fromkeys(map(int, parts)))


def _states(cells: list[Cell], folder: Path) -> dict[str, str]:
    known = read_cells(folder)
    incomplete = {cell.key: known.get(cell.key, cell) for cell in cells if cell.missing(folder)}
    active = active_jobs(incomplete.values())
    return {
        cell.key: DONE if cell.key not in incomplete else ACTIVE if incomplete[cell.key].job in active else TO_DO
        for cell in cells
    }


def _submit(cells: list[Cell], limits: Cluster, folder: Path) -> int:
    count = 0
    for submitted in submit(cells, limits, folder, run_command):
        remember_cells(folder, submitted)
        count += len(submitted)
        echo(f"submitted {counted(len(submitted), 'job')} as {submitted[0].job.partition('_')[0]}")
    check = shlex.join(["mill", "collect", "--check", "--output_dir", str(folder)])
    echo(f"{counted(count, 'job')} in the queue; `{check}` lists what is missing")
    return 0


def _show(cells: list[Cell], states: dict[str, str], folder: Path) -> None:
    rows = [[cell.model, cell.task, cell.shots, states[cell.key], _shortened(cell.missing(folder))] for cell in cells]
    print_table("", _COLUMNS, rows, numbers=("shots",))


def _shortened(missing: list[str]) -> str:
    return "; ".join(missing[:2]) + (f"; {len(missing) - 2} more" if len(missing) > 2 else "")
