"""`mill eval MODELS TASKS`: run benchmarks on models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from mill.api.errors import Interrupted, MillError, SpecError
from mill.api.printing import echo
from mill.api.ranks import rank, world_size
from mill.api.secrets import redact_text
from mill.api.task import RenderSettings
from mill.api.warnings import warn
from mill.cli.options import (
    base_url_option,
    chosen_output_dir,
    output_dir_option,
    remote_code_option,
    split_paths,
    task_paths_option,
)
from mill.cli.run_file import read_run_file
from mill.cli.values import AUTO, BatchSize, FilePath, Limit, Pairs, Real, Texts
from mill.execute.choose import ENGINES, LOCAL, ExecutorChoice
from mill.execute.ranks import Ranks
from mill.models.spec.parse import make_spec
from mill.models.spec.remote_code import forbid_remote_code
from mill.report.plan import print_plan
from mill.report.scores import print_outcome
from mill.runs.evaluate import Run, prepare
from mill.tasks.load import load_builtin, load_files, select

EXAMPLES = """
\b
Examples:
  mill eval meta-llama/Meta-Llama-3-8B-Instruct mmlu
  mill eval "hf[path=./my-model,dtype=float32]" gsm8k,hellaswag --limit 100
  mill eval my_model.py "mmlu_high_school_*" --n_shots 0 --output_dir results
  mill eval org/name notes.txt          (perplexity of a text of your own)
  mill eval --config run.yaml --dry_run
"""


@dataclass(frozen=True)
class EvalOptions:
    """A whole `mill eval`, from the command line and the file of --config together."""

    models: list[str]
    tasks: list[str]
    settings: RenderSettings
    output_dir: Path
    limit: int | float | None = None
    batch_size: int | None = None
    task_paths: tuple[str, ...] = ()
    fresh: bool = False
    dry_run: bool = False
    quiet: bool = False
    wait: float = 0.0
    base_url: str = ""
    exact: bool = False
    choice: ExecutorChoice = field(default_factory=ExecutorChoice)
    judge: str = ""


@click.command("eval", epilog=EXAMPLES)
@click.argument("models", required=False, type=Texts())
@click.argument("tasks", required=False, type=Texts())
@output_dir_option()
@click.option("--limit", type=Limit(), default=None, help="Samples of each task: a count (100) or a fraction (0.1).")
@click.option(
    "--n_shots",
    type=click.IntRange(min=0),
    default=None,
    help="Examples before each question; default: the task's own.",
)
@click.option("--same_shots", is_flag=True, default=None, help="The first examples for every question, not a draw for each.")
@click.option("--seed", type=int, default=None, help="Seed of example draws and sampling. [default: 0]")
@click.option("--repeats", type=click.IntRange(min=1), default=None, help="Answers to each question. [default: 1]")
@click.option(
    "--batch_size", type=BatchSize(), default=None, help="Requests at once, or auto. A batch_size in the model spec wins."
)
@task_paths_option()
@click.option(
    "--gen_kwargs", type=Pairs("--gen_kwargs"), default=None, help="Decoding options: temperature=0.7,max_gen_toks=512."
)
@click.option("--system_prompt", default=None, help="A system message, or text in front where there is no chat template.")
@click.option("--apply_chat_template", is_flag=True, default=None, help="Send prompts through the model's chat template.")
@click.option("--fresh", is_flag=True, default=None, help="Compute everything anew, beside what is recorded.")
@click.option("--exact", is_flag=True, default=None, help="hf: compute every row by itself, sharing no beginnings.")
@click.option(
    "--config", type=FilePath(), default=None, help="A YAML file with any of these options; the command line wins."
)
@click.option("--dry_run", is_flag=True, default=None, help="Say what would run, without loading weights.")
@base_url_option()
@remote_code_option()
@click.option("--wait", type=Real(min=0), default=None, help="Seconds to wait for a server to come up.")
@click.option("--judge", default=None, help="A model, any spec, that grades the answers of tasks that are judged.")
@click.option("--engine", type=click.Choice(ENGINES), default=None, help="Who computes. [default: local]")
@click.option("--workers", type=click.IntRange(min=1), default=None, help="Processes that each hold the model, on Ray.")
@click.option("--address", default=None, help="Of a Ray cluster; default: one of this machine's own.")
@click.option("--gpus_per_worker", type=Real(min=0), default=None, help="[default: 1 where there are any]")
@click.option("--quiet", is_flag=True, default=None, help="No progress.")
@click.pass_context
def command(
    ctx: click.Context, /, config: str | None, output_dir: str | None, task_paths: tuple[list[str], ...], **given: Any
) -> int:
    """Run TASKS on MODELS, both comma-separated; commas inside brackets belong to a spec.

    An interrupted run goes on where it stopped when the same command is given again, and a larger --limit extends a
    smaller one. The exit code is 0 when every sample has a score, 1 when some failed, 2 when the input is refused.
    """
    from_file = read_run_file(config, ctx.command.params) if config else {}
    if from_file.get("no_remote_code"):
        forbid_remote_code()
    given = {name: value if value is not None else from_file.get(name) for name, value in given.items()}
    paths = split_paths(task_paths) or tuple(from_file.get("task_paths") or ())
    folder = chosen_output_dir(ctx, output_dir or (ctx.obj or {}).get("output_dir") or from_file.get("output_dir"))
    return evaluate(_options(given, folder, paths))


def evaluate(options: EvalOptions) -> int:
    """Plan every model before the first is loaded, so that a mistake in the last one is found at once."""
    load_builtin()
    load_files(options.task_paths)
    runs = [
        prepare(
            make_spec(model, base_url=options.base_url),
            select(options.tasks),
            options.settings,
            output_dir=options.output_dir,
            limit=options.limit,
            fresh=options.fresh,
            batch_size=options.batch_size,
            wait=options.wait,
            exact=options.exact,
            choice=options.choice,
            judge=make_spec(options.judge) if options.judge else None,
        )
        for model in options.models
    ]
    for run in runs if rank() == 0 else ():
        for plan in run.plans:
            for warning in plan.without_effect():
                warn(f"{plan.task.name}: {warning}")
    if options.dry_run:
        for run in runs if rank() == 0 else ():
            print_plan(run)
        return 0
    failed = [_execute(run, options, number) for number, run in enumerate(runs)]
    return int(any(failed))


def _execute(run: Run, options: EvalOptions, number: int) -> bool:
    """One model's run; True if something failed. A model that breaks does not keep the others from running."""
    try:
        if world_size() > 1:
            outcome = run.execute_together(Ranks(number), quiet=options.quiet)
        else:
            outcome = run.execute(quiet=options.quiet)
    except KeyboardInterrupt:
        how = "the same command without --fresh" if options.fresh else "the same command"
        raise Interrupted(f"interrupted; nothing that was answered is lost: {how} goes on from here") from None
    except MillError as error:
        if world_size() > 1:  # the others have ended too
            raise
        echo(redact_text(f"mill: {run.model.model_name}: {error}"), err=True)
        return True
    if outcome is None:
        return False
    print_outcome(outcome)
    return outcome.errors + outcome.judge_failures > 0


def _judge(text: str | None) -> str:
    if text is not None and not text.strip():
        raise SpecError("--judge names no model")
    return text or ""


def _options(given: Mapping[str, Any], output_dir: Path, task_paths: tuple[str, ...]) -> EvalOptions:
    if not given["models"] or not given["tasks"]:
        raise SpecError("give models and tasks: mill eval MODELS TASKS, or a file with both: mill eval --config run.yaml")
    settings = RenderSettings(
        n_shots=given["n_shots"],
        seed=given["seed"] or 0,
        repeats=given["repeats"] or 1,
        gen_kwargs=given["gen_kwargs"] or {},
        system_prompt=given["system_prompt"],
        apply_chat_template=bool(given["apply_chat_template"]),
        same_shots=bool(given["same_shots"]),
    )
    return EvalOptions(
        models=given["models"],
        tasks=given["tasks"],
        settings=settings,
        output_dir=output_dir,
        limit=given["limit"],
        batch_size=None if given["batch_size"] == AUTO else given["batch_size"],
        task_paths=task_paths,
        fresh=bool(given["fresh"]),
        dry_run=bool(given["dry_run"]),
        quiet=bool(given["quiet"]),
        wait=given["wait"] or 0.0,
        base_url=given["base_url"] or "",
        exact=bool(given["exact"]),
        choice=ExecutorChoice(given["engine"] or LOCAL, given["workers"], given["address"], given["gpus_per_worker"]),
        judge=_judge(given["judge"]),
    )
