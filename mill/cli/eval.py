"""`mill eval MODELS TASKS`: run benchmarks on models."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import click

from mill.api.budget import BudgetReached
from mill.api.errors import UNDECIDED_EXIT, Interrupted, MillError, SpecError, UnknownName
from mill.api.registry import tasks
from mill.cli.options import FilePath, argument, given_options, options
from mill.export.tracker import check_trackers, logged_to
from mill.models.spec.parse import Spec, make_spec
from mill.options.definitions import EvalOptions, merge, read_run_file
from mill.options.option import one_call, options_of
from mill.report.scores import print_outcome, print_plan
from mill.runs.evaluate import Plan
from mill.runs.plan import plan
from mill.runs.ranks import Ranks
from mill.score.run_scores import Outcome
from mill.support.clocks import take_seconds
from mill.support.processes import rank, world_size
from mill.support.secrets import redact_text
from mill.support.terminal import describe, echo, warn
from mill.tasks.load import expand_task_files, load_builtin, load_files, select

EXAMPLES = """
\b
Examples:
  mill eval meta-llama/Meta-Llama-3-8B-Instruct mmlu
  mill eval smollm2_135m_instruct gsm8k --limit 20     (a packaged config: mill ls models --configs)
  mill eval "hf[path=./my-model,dtype=float32]" gsm8k,hellaswag --limit 100
  mill eval org/name mmlu --sample 1000                (a random sample of all subjects)
  mill eval org/name mmlu --decide "acc>0.6"           (as many samples as the decision needs)
  mill eval my_model.py "mmlu_high_school_*" --n_shots 0 --output_dir results
  mill eval org/name my_task.py                        (a task of a Python file)
  mill eval org/name notes.txt                         (perplexity of a text file)
  mill eval --config run.yaml --dry_run
"""
FAILED, STOPPED, UNDECIDED = 1, BudgetReached.exit_code, UNDECIDED_EXIT
CONFIG_HELP = (
    "A run file in YAML: MODELS, TASKS and any option of this page by its name (models: [...], tasks: [...], limit: 100). "
    "The command line wins over the file."
)


@click.command("eval", epilog=EXAMPLES)
@argument("models")
@argument("tasks")
@options(name for name in options_of(EvalOptions) if name not in ("models", "tasks"))
@click.option("--config", type=FilePath(), default=None, help=CONFIG_HELP)
@click.pass_context
def command(ctx: click.Context, /, config: str | None, **values: Any) -> int:
    """Run TASKS on MODELS, both comma-separated; commas inside brackets belong to a spec.

    A model is a Hugging Face name or folder, a backend with arguments (vllm[path=org/name]), a server's address, a config
    file, or the name of a packaged config.

    The same command resumes an interrupted run, and a larger --limit extends a smaller one. The exit code is 0 when every
    sample has a score, 1 when some failed, 2 when the input is refused, 4 when the run stopped at its budget, 5
    when --decide was undecided.
    """
    given = given_options(ctx, values, EvalOptions)
    from_file = read_run_file(config) if config is not None else {}
    merged = merge(given, from_file)
    ctx.with_resource(one_call(merged))
    return evaluate(EvalOptions(**merged))


def evaluate(options: EvalOptions) -> int:
    """Plan every model before the first one loads, so that a mistake in the last one is reported at once."""
    if not options.models or not options.tasks:
        raise SpecError("give models and tasks: mill eval MODELS TASKS, or a file with both: mill eval --config run.yaml")
    if options.log_to:
        check_trackers(options.log_to)
    load_builtin()
    load_files(tuple(options.task_paths))  # which may register the backend of the judge
    how = options.run
    task_names = expand_task_files(options.tasks)
    starts = len(options.models) == 1 and not options.dry_run
    plans = [plan(_spec(model, options.base_url or ""), select(task_names), how, starts=starts) for model in options.models]
    for one in plans if rank() == 0 else ():
        for task in one.tasks:
            for warning in task.without_effect():
                warn(f"{task.task.name}: {warning}")
    if options.dry_run:
        for one in plans if rank() == 0 else ():
            print_plan(one)
        return 0
    try:
        codes = {_execute(one, options, number, alone=len(plans) == 1) for number, one in enumerate(plans)}
    except KeyboardInterrupt:
        raise Interrupted("the same command without --fresh" if options.fresh else "the same command") from None
    return next((code for code in (FAILED, STOPPED, UNDECIDED) if code in codes), 0)


def _spec(model: str, base_url: str) -> Spec:
    try:
        return make_spec(model, base_url=base_url)
    except UnknownName as error:
        if model in tasks:
            raise SpecError(f"{model} is a task; models come first: mill eval MODELS TASKS") from error
        raise


def _execute(one: Plan, options: EvalOptions, number: int, *, alone: bool) -> int:
    """Run one model; the exit code for it. The other models run even if this one breaks."""
    try:
        with logged_to(one.folder, options.log_to) if options.log_to else nullcontext():
            if world_size() > 1:
                outcome = one.execute_together(Ranks(number), quiet=options.quiet)
            else:
                outcome = one.execute(quiet=options.quiet)
    except Exception as error:
        expected = isinstance(error, MillError)
        if world_size() > 1 or (alone and not expected):  # the other ranks have ended too
            raise
        unexpected = f"unexpected {describe(error)} (run this model alone with --debug for the traceback)"
        echo(redact_text(f"mill: {one.model.model_name}: {error if expected else unexpected}"), err=True)
        take_seconds()  # which are not those of the next model
        return FAILED
    if outcome is None:
        return 0
    print_outcome(outcome)
    decided = options.decide is None or _write_decisions(one, outcome)
    if outcome.stopped or not outcome.complete:
        return STOPPED if outcome.stopped else FAILED
    return 0 if decided else UNDECIDED


def _write_decisions(one: Plan, outcome: Outcome) -> bool:
    """Write a check for each decision; False where a claim is undecided."""
    from mill.checks.decide import decision_checks

    checks = decision_checks(outcome, one.model.model_name, one.spec.backend)
    for check in checks:
        echo(f"written: {check.save(one.folder.root)}")
    return all(one.decision and one.decision.outcome != "undecided" for check in checks for one in check.variants)
