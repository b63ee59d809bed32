"""`mill conform SPEC`: does a backend keep the contract?"""

from __future__ import annotations

import click

from mill.api.printing import echo
from mill.cli.options import base_url_option, remote_code_option, split_paths, task_paths_option
from mill.cli.values import Real
from mill.execute.conformance import conform
from mill.models.spec.open import open_model
from mill.models.spec.parse import make_spec
from mill.report.tables import print_table
from mill.tasks.load import load_files


@click.command("conform")
@click.argument("spec")
@click.option("--reference", default=None, help="A model with the same weights, whose log-likelihoods are the measure.")
@click.option(
    "--tolerance", type=Real(min=0), default=1e-3, show_default=True, help="Nats a token that may lie between them."
)
@click.option("--wait", type=Real(min=0), default=0.0, help="Seconds to wait for a server to come up.")
@base_url_option()
@remote_code_option()
@task_paths_option()
def command(
    spec: str, reference: str | None, tolerance: float, wait: float, base_url: str | None, task_paths: tuple[list[str], ...]
) -> int:
    """Run the checks that every backend must pass on the model SPEC and print a table. The exit code is 1 if one fails.

    \b
    Examples:
      mill conform "hf[path=./my-model,dtype=float32]"
      mill conform "llama-cpp[base_url=http://127.0.0.1:8080]" --reference ./my-model --tolerance 0.1
    """
    load_files(split_paths(task_paths))
    model = open_model(make_spec(spec, base_url=base_url or ""))
    measure = open_model(reference) if reference else None
    for opened in (model, measure):
        if opened is not None:
            opened.ready(wait)
            opened.load()
    verdicts = conform(model, measure, tolerance)
    for opened in (model, measure):
        if opened is not None:
            opened.clean()  # an engine's processes end before this one does
    rows = [[verdict.check, verdict.outcome, verdict.detail] for verdict in verdicts]
    print_table(f"{model.model_name} ({type(model).__name__})", ("check", "outcome", "detail"), rows)
    failed = sum(verdict.outcome == "fail" for verdict in verdicts)
    skipped = sum(verdict.outcome == "skip" for verdict in verdicts)
    echo(f"{len(verdicts) - failed - skipped} passed, {failed} failed, {skipped} skipped")
    return int(failed > 0)
