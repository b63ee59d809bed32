"""`mill conform SPEC`: the contract of backends, for those who write one."""

from __future__ import annotations

import math
from typing import Any

import click

from mill.api.errors import SpecError
from mill.cli.options import given_options, options
from mill.execute.conformance import conform
from mill.models.spec.open import open_model
from mill.models.spec.parse import make_spec
from mill.options.definitions import EvalOptions
from mill.report.tables import print_table
from mill.support.terminal import echo
from mill.tasks.load import load_files


@click.command("conform")
@click.argument("spec")
@click.option("--reference", default=None, help="A model with the same weights; its log-likelihoods are the reference.")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0, max=1e9),
    default=1e-3,
    show_default=True,
    help="Accepted difference in nats per token.",
)
@options(("wait", "base_url", "no_remote_code", "task_paths"))
@click.pass_context
def command(ctx: click.Context, /, spec: str, reference: str | None, tolerance: float, **values: Any) -> int:
    """Run the checks that every backend must pass on the model SPEC and print a table. The exit code is 1 if one fails.

    \b
    Examples:
      mill conform "hf[path=./my-model,dtype=float32]"
      mill conform "llama-cpp[base_url=http://127.0.0.1:8080]" --reference ./my-model --tolerance 0.1
    """
    if math.isnan(tolerance):  # which is in every range
        raise SpecError("--tolerance: nan is not a number")
    given = EvalOptions(**given_options(ctx, values, EvalOptions))
    load_files(tuple(given.task_paths))
    model = open_model(make_spec(spec, base_url=given.base_url or ""))
    other = open_model(reference) if reference else None
    for opened in (model, other):
        if opened is not None:
            opened.ready(given.wait)
            opened.load()
    verdicts = conform(model, other, tolerance)
    for opened in (model, other):
        if opened is not None:
            opened.clean()  # the processes of an engine must end before this one
    rows = [[verdict.check, verdict.outcome, verdict.detail] for verdict in verdicts]
    print_table(f"{model.model_name} ({type(model).__name__})", ("check", "outcome", "detail"), rows)
    failed = sum(verdict.outcome == "fail" for verdict in verdicts)
    skipped = sum(verdict.outcome == "skip" for verdict in verdicts)
    echo(f"{len(verdicts) - failed - skipped} passed, {failed} failed, {skipped} skipped")
    return int(failed > 0)
