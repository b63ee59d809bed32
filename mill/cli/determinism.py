"""`mill determinism`: the same prompts several times."""

from __future__ import annotations

from typing import Any

import click

from mill.cli.check_options import check_options, finish, read_options
from mill.cli.options import option

PROMPTS = "determinism"
EXAMPLES = """
\b
Examples:
  mill determinism --model my-model --backend llama-cpp --base_url http://127.0.0.1:8080 --prompts determinism --runs 20
  mill determinism --model ./model --tasks mmlu_anatomy --limit 50 --runs 8 --fail_on "identical_rate<1"
"""


@click.command("determinism", epilog=EXAMPLES)
@click.option("--model", required=True, help="Model spec.")
@click.option("--backend", default=None, help="Backend. [default: detected from the spec]")
@option("base_url")
@click.option("--runs", type=click.IntRange(min=2), default=100, show_default=True, help="Times that each prompt is sent.")
@check_options(PROMPTS)
@click.pass_context
def command(ctx: click.Context, /, model: str, backend: str | None, runs: int, **values: Any) -> int:
    """Is the answer the same every time? The runs alternate between one, two, three and many requests in flight, so that
    effects of batch composition show too."""
    from mill.checks.determinism import determinism
    from mill.checks.subjects import label_of, open_subject
    from mill.models.spec.parse import make_spec

    prepared = read_options(ctx, values, default_prompts=PROMPTS)
    spec = make_spec(model, backend=backend or "", base_url=prepared.options.base_url or "")
    subject = open_subject(label_of(spec), spec, prepared.config)
    return finish(prepared, lambda: determinism(subject, prepared.config, runs=runs))
