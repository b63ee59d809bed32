"""`mill determinism`: the same prompts again and again."""

from __future__ import annotations

from typing import Any

import click

from mill.cli.check_options import check_options, finish, read_options
from mill.cli.options import base_url_option

PROMPTS = "determinism"
EXAMPLES = """
\b
Examples:
  mill determinism --model my-model --backend llama-cpp --base-url http://127.0.0.1:8080 --prompts determinism --runs 20
  mill determinism --model ./model --tasks mmlu_anatomy --limit 50 --runs 8 --fail-on "identical_rate<1"
"""


@click.command("determinism", epilog=EXAMPLES)
@click.option("--model", required=True, help="Model spec.")
@click.option("--backend", default=None, help="Backend. [default: found from the model]")
@base_url_option()
@click.option("--runs", type=click.IntRange(min=2), default=100, show_default=True, help="Times each prompt is asked.")
@check_options(PROMPTS)
@click.pass_context
def command(ctx: click.Context, /, model: str, backend: str | None, runs: int, **given: Any) -> int:
    """Is the answer the same every time? Runs take turns with one, two, three and many requests under way, so that other
    company in a batch shows too."""
    from mill.checks.determinism import determinism
    from mill.checks.subjects import label_of, open_subject
    from mill.models.spec.parse import make_spec

    options = read_options(ctx, given, default_prompts=PROMPTS)
    spec = make_spec(model, backend=backend or "", base_url=given["base_url"] or "")
    subject = open_subject(label_of(spec), spec, options.asked)
    return finish(options, lambda: determinism(subject, options.asked, runs=runs))
