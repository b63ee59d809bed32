"""`mill schedule MODELS TASKS`: a matrix of runs on a cluster, or one after another on this machine."""

from __future__ import annotations

import contextlib
import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from mill.api.errors import Interrupted, MissingPackage, SpecError
from mill.api.printing import echo
from mill.api.secrets import is_secret, names_hidden, redact_addresses
from mill.api.task import RenderSettings
from mill.cli.options import (
    chosen_output_dir,
    output_dir_option,
    parse_pairs,
    remote_code_option,
    split_paths,
    task_paths_option,
)
from mill.cli.values import FilePath
from mill.models.spec.open import open_model, resolve_spec
from mill.models.spec.parse import make_spec, split_list
from mill.models.spec.remote_code import remote_code_forbidden
from mill.report.tables import print_table
from mill.runs.advisory_lock import advisory_lock
from mill.runs.evaluate import plan_run
from mill.runs.folder import RunFolder, check_writable
from mill.runs.plan import parse_limit, refuse_early
from mill.schedule.cells import FOLDER, Cell, cell_of, forget_cells, read_cells, remember_cells
from mill.schedule.cluster import Cluster, read_cluster
from mill.schedule.jobs import jobs_under_way, run_here, submit
from mill.tasks.load import load_builtin, load_files, select

DONE, UNDER_WAY, TO_DO = "done", "under way", "to do"
_COLUMNS = ("model", "task", "shots", "state", "missing")

EXAMPLES = """
\b
Examples:
  mill schedule org/small,org/large mmlu,gsm8k --n_shots 0,5 --cluster cluster.yaml
  mill schedule org/small mmlu,gsm8k --n_shots 0,5 --dry_run
  mill schedule org/small gsm8k --local
  mill schedule org/large mmlu --forget
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
@click.option("--n_shots", default=None, help="Numbers of examples, comma-separated; default: each task's own.")
@output_dir_option()
@click.option("--cluster", type=FilePath(), default=None, help="A YAML file with the limits of a job and of arrays.")
@click.option("--local", is_flag=True, help="Run the cells as processes of this machine and wait for them.")
@click.option("--dry_run", is_flag=True, help="Show the matrix and what of it is missing; submit nothing.")
@click.option("--forget", is_flag=True, help="Take the cells off the list of what is scheduled; results and jobs stay.")
@click.option("--limit", default=None, help="Samples of each task: a count (100) or a fraction (0.1).")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of example draws and sampling.")
@click.option("--batch_size", type=click.IntRange(min=1), default=None, help="Requests at once; default: what fits.")
@click.option("--gen_kwargs", default=None, help="Decoding options: temperature=0.7,max_gen_toks=512.")
@click.option("--apply_chat_template", is_flag=True, help="Send prompts through the model's chat template.")
@task_paths_option()
@remote_code_option()
@click.pass_context
def command(
    ctx: click.Context,
    /,
    models: str,
    tasks: str,
    n_shots: str | None,
    output_dir: str | None,
    cluster: str | None,
    local: bool,
    dry_run: bool,
    forget: bool,
    **given: Any,
) -> int:
    """Run every cell of MODELS x TASKS x --n_shots that has no complete result yet, as jobs of SLURM.

    Given again, it submits only what failed or was never done; cells that are queued or running are left alone. A job whose
    time is over goes back to the queue and goes on where it stopped.
    """
    folder = chosen_output_dir(ctx, output_dir).resolve()
    if forget:
        if dry_run or local:
            raise SpecError("--forget goes with neither --dry_run nor --local: it starts nothing")
        shots = [] if n_shots is None else _shots(n_shots)
        count = forget_cells(folder, split_list(models), split_list(tasks), shots)
        echo(f"{count} cells are not scheduled any more")
        return int(count == 0)
    if not local and importlib.util.find_spec("submitit") is None:
        raise MissingPackage("mill schedule", "submitit", "slurm")
    limits = read_cluster(cluster, local=local)
    cells = _cells(split_list(models), split_list(tasks), _shots(n_shots), folder, given)
    if dry_run:
        states = _states(cells, folder, local=local)
        _show(cells, states, folder)
        count = sum(state == TO_DO for state in states.values())
        arrays = -(-count // limits.array_size)
        echo(f"would submit {count} of {len(cells)} cells in {arrays} array{'s' * (arrays != 1)}: {_told(limits)}")
        return 0
    # Two commands that submit at once would both find a cell missing; cells that run here take turns by themselves.
    with contextlib.nullcontext() if local else advisory_lock(RunFolder(folder / FOLDER), [FOLDER]):
        states = _states(cells, folder, local=local)
        remember_cells(folder, cells)
        todo = [cell for cell in cells if states[cell.key] == TO_DO]
        if not todo:
            _show(cells, states, folder)
            return 0
        return _run_here(todo, limits, folder) if local else _submit(todo, limits, folder)


def _cells(models: list[str], tasks: list[str], shots: list[int | None], folder: Path, given: dict[str, Any]) -> list[Cell]:
    """The whole matrix, planned: what can be refused is refused here, before the first job is submitted."""
    if not models or not tasks:
        raise SpecError("give models and tasks: mill schedule MODELS TASKS")
    gen_kwargs, limit = parse_pairs(given["gen_kwargs"], "--gen_kwargs"), parse_limit(given["limit"])
    paths = tuple(str(Path(path).resolve()) for path in split_paths(given["task_paths"]))
    load_builtin()
    load_files(paths)
    check_writable(folder)
    settings = RenderSettings(
        seed=given["seed"], gen_kwargs=gen_kwargs, apply_chat_template=bool(given["apply_chat_template"])
    )
    found = []
    for text in models:
        spec = resolve_spec(make_spec(text))
        secret = next((name for name, value in spec.arguments.items() if _holds_secret(name, value)), None)
        if secret:
            raise SpecError(f"a secret in {secret} would be stored with the jobs: set MILL_API_KEY in the environment")
        for task in tasks:
            refuse_early(select([task]), spec.backend)
        model = open_model(spec)
        model.ready()
        for task in tasks:
            for number in shots:
                asked = replace(settings, n_shots=number)
                run = plan_run(spec, model, select([task]), asked, output_dir=folder, limit=limit)
                argv = ["eval", text, task, "--output_dir", str(folder), "--quiet", *_options(number, given, paths)]
                found.append(cell_of(run, text, task, number, argv, folder))
    return list({cell.key: cell for cell in found}.values())  # a cell that is named twice is one


def _holds_secret(name: str, value: object) -> bool:
    return is_secret(name) or names_hidden(value) or (isinstance(value, str) and redact_addresses(value) != value)


def _options(n_shots: int | None, given: dict[str, Any], paths: tuple[str, ...]) -> list[str]:
    """The options of a cell's `mill eval`."""
    asked = {"n_shots": n_shots, "seed": given["seed"] or None}
    asked |= {name: given[name] for name in ("limit", "batch_size", "gen_kwargs")}
    found = [part for name, value in asked.items() if value is not None for part in (f"--{name}", str(value))]
    found += ["--apply_chat_template"] * bool(given["apply_chat_template"])
    found += ["--no_remote_code"] * remote_code_forbidden()
    return found + [part for path in paths for part in ("--task_paths", path)]


def _shots(text: str | None) -> list[int | None]:
    if text is None:
        return [None]
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() for part in parts):
        raise SpecError(f"--n_shots {text}: give counts, comma-separated, such as 0,5")
    return list(dict.fromkeys(map(int, parts)))


def _states(cells: list[Cell], folder: Path, *, local: bool) -> dict[str, str]:
    known = read_cells(folder)
    lacking = {cell.key: known.get(cell.key, cell) for cell in cells if cell.missing(folder)}
    under_way = set() if local else jobs_under_way(lacking.values())
    return {
        cell.key: DONE if cell.key not in lacking else UNDER_WAY if lacking[cell.key].job in under_way else TO_DO
        for cell in cells
    }


def _submit(cells: list[Cell], limits: Cluster, folder: Path) -> int:
    count = 0
    for submitted in submit(cells, limits, folder):
        remember_cells(folder, submitted)
        count += len(submitted)
        echo(f"submitted {len(submitted)} cells as {submitted[0].job.partition('_')[0]}")
    echo(f"{count} cells in the queue; `mill collect --check --output_dir {folder}` tells what is missing")
    return 0


def _run_here(cells: list[Cell], limits: Cluster, folder: Path) -> int:
    failed = 0
    try:
        with contextlib.closing(run_here(cells, limits, folder)) as ended:
            for number, (cell, error) in enumerate(ended, 1):
                remember_cells(folder, [cell])
                what = f"{cell.model} {cell.task} shots {cell.shots}"
                echo(f"[{number}/{len(cells)}] {what}: {error or 'done'}", err=bool(error))
                failed += error is not None
    except KeyboardInterrupt:
        raise Interrupted("interrupted; nothing that was answered is lost: the same command goes on from here") from None
    echo(f"{len(cells) - failed} of {len(cells)} cells done; `mill collect --output_dir {folder}` shows the scores")
    return int(failed > 0)


def _show(cells: list[Cell], states: dict[str, str], folder: Path) -> None:
    rows = [[cell.model, cell.task, cell.shots, states[cell.key], _shortened(cell.missing(folder))] for cell in cells]
    print_table("", _COLUMNS, rows, numbers=("shots",))


def _shortened(missing: list[str]) -> str:
    return "; ".join(missing[:2]) + (f"; {len(missing) - 2} more" if len(missing) > 2 else "")


def _told(limits: Cluster) -> str:
    return ", ".join(f"{name}={value}" for name, value in limits.parameters("mill").items())
