"""`mill stress`: the same prompts at growing concurrency."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from mill.api.errors import SpecError
from mill.cli.check_options import check_options, finish, read_options
from mill.cli.options import option

PROMPTS = "reasoning"
MAX_CONCURRENCY = 1024
REPETITIONS = 3
EXAMPLES = """
\b
Examples:
  mill stress --model my-model --backend openai-compat --base_url http://my-server:8000/v1 --concurrency 1,2,4,8
  mill stress --model ./model --tasks gsm8k --limit 64 --concurrency 1,8,32 --fail_on "match_rate<0.99"
"""


@click.command("stress", epilog=EXAMPLES)
@click.option("--model", required=True, help="Model spec.")
@click.option("--backend", default=None, help="Backend. [default: detected from the spec]")
@option("base_url")
@click.option("--concurrency", default="1,2,4,8,16", show_default=True, help="Levels; the lowest is the baseline.")
@click.option(
    "--repetitions", type=click.IntRange(min=1), default=REPETITIONS, show_default=True, help="Times each level is measured."
)
@click.option(
    "--distinct_prompts",
    is_flag=True,
    help="A unique line before every prompt, so that no prompt cache serves it; answers are not compared then.",
)
@check_options(PROMPTS)
@click.pass_context
def command(ctx: click.Context, /, model: str, backend: str | None, concurrency: str, **values: Any) -> int:
    """Does load change the answers? Each level shows consistency, failures, throughput and latencies. Every call measures
    again; the levels take turns after a warm-up."""
    from mill.checks.stress import stress
    from mill.checks.subjects import label_of, open_subject
    from mill.models.spec.open import resolve_spec, takes_argument
    from mill.models.spec.parse import make_spec

    levels = _levels(concurrency)
    prepared = read_options(ctx, values, default_prompts=PROMPTS, top_logprobs=None)
    spec = resolve_spec(make_spec(model, backend=backend or "", base_url=prepared.options.base_url or ""))
    if takes_argument(spec.backend, "stream"):  # only streams show the time of the first token
        spec = replace(spec, arguments={"stream": True, **spec.arguments})
    subject = open_subject(label_of(spec), spec, prepared.config)
    how = {name: values[name] for name in ("repetitions", "distinct_prompts")}
    return finish(prepared, lambda: stress(subject, prepared.config, levels=levels, **how))


def _levels(text: str) -> list[int]:
    try:
        levels = sorted({int(part) for part in text.split(",")})
    except ValueError:
        levels = []
    if not levels or not 1 <= levels[0] <= levels[-1] <= MAX_CONCURRENCY:
        raise SpecError(f"--concurrency {text}: give counts from 1 to {MAX_CONCURRENCY}, such as 1,2,4,8")
    return levels
