"""`mill compare A B`: what changes from one model to another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from mill.api.errors import SpecError
from mill.cli.check_options import check_options, finish, forced_option, read_options
from mill.cli.options import option, options
from mill.cli.values import FilePath
from mill.options.checks import CheckOptions

PROMPTS = "numerics"
FOR_RUNS = ("runs", "label_a", "label_b", "task_paths", "output_dir", "fail_on", "require", "strict", "report", "quiet")
EXAMPLES = """
\b
Examples:
  mill compare mlx-community/Llama-3.1-8B-Instruct-bf16 mlx-community/Llama-3.1-8B-Instruct-4bit
  mill compare ollama:llama3.1:8b-instruct-q4_K_M ollama:llama3.1:8b-instruct-q8_0 --prompts reasoning
  mill compare org/base org/tuned --tasks mmlu,gsm8k --require "acc_drop<0.01"
  mill compare org/base org/tuned --tasks mmlu --decide "acc_drop>0.01"
  mill compare --runs results/a-1234/default results/b-5678/default
"""


@click.command("compare", epilog=EXAMPLES)
@click.argument("a", required=False)
@click.argument("b", required=False)
@click.option("--runs", nargs=2, type=FilePath(), default=None, help="Two recorded runs instead of models.")
@click.option("--label_a", default=None, help="Name of A in tables.")
@click.option("--label_b", default=None, help="Name of B in tables.")
@option("base_url")
@options(("decide", "alpha"), CheckOptions)
@forced_option()
@check_options(PROMPTS)
@click.pass_context
def command(ctx: click.Context, /, a: str | None, b: str | None, runs: tuple[str, str] | None, **values: Any) -> int:
    """Compare model B with model A, the baseline, on prompts or tasks. Prompts go through the chat template where both
    models have one; --no_chat sends plain text to completions, so that templates make no difference.

    The exit code is 0, 1 when requests failed, 2 when the input is refused, 3 when a rule is broken, 5 when the samples
    are too few to decide.
    """
    from mill.checks.compare import compare, compare_runs
    from mill.checks.subjects import labelled, open_subjects
    from mill.models.spec.parse import make_spec

    prepared = read_options(ctx, values, default_prompts=PROMPTS)
    labels = [values["label_a"], values["label_b"]]
    if runs:
        if a or b:
            raise SpecError("give two models, or --runs with two recorded runs, not both")
        _refuse_with_runs(ctx)
        return finish(prepared, lambda: compare_runs(Path(runs[0]), Path(runs[1]), labels))
    if not a or not b:
        raise SpecError("give two models: mill compare A B, or two recorded runs: mill compare --runs A B")
    specs = [make_spec(model, base_url=prepared.options.base_url or "", if_served=True) for model in (a, b)]
    subjects = open_subjects(labelled(specs, labels), prepared.config)
    forced = prepared.options.forced_tokens
    return finish(prepared, lambda: compare("compare", subjects, prepared.config, forced_tokens=forced))


def _refuse_with_runs(ctx: click.Context) -> None:
    """Recorded runs send no requests: an option about requests would be ignored."""
    typed = [name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    unused = [name for name in typed if name not in FOR_RUNS]
    if unused:
        raise SpecError(f"--{unused[0]} is about requests to a model, and --runs compares recorded ones: leave it out")
