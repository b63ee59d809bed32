"""`mill diff`: one model on several backends."""

from __future__ import annotations

from typing import Any

import click

from mill.api.errors import SpecError
from mill.cli.check_options import check_options, finish, forced_option, read_options

PROMPTS = "reasoning"
EXAMPLES = """
\b
Examples:
  mill diff --model mlx-community/Meta-Llama-3.1-8B-Instruct-4bit \\
    --backends "mlx-lm,vllm-mlx" --base_urls ",http://127.0.0.1:8000" --prompts reasoning
  mill diff --model ./model --backends hf,vllm --no_chat --tasks gsm8k --limit 50
  mill diff --model ./model --backends "hf[dtype=float32],hf[dtype=bfloat16]" --prompts numerics
"""


@click.command("diff", epilog=EXAMPLES)
@click.option("--model", required=True, help="The model, by the name that every backend uses.")
@click.option(
    "--backends", required=True, help="Comma-separated, with arguments in brackets where needed; the first is the baseline."
)
@click.option("--base_urls", default=None, help="Server addresses, in the order of --backends; empty for none.")
@forced_option()
@check_options(PROMPTS, chat=True)
@click.pass_context
def command(ctx: click.Context, /, model: str, backends: str, base_urls: str | None, **values: Any) -> int:
    """Does another engine give the same answers? The first backend is the baseline."""
    from mill.checks.compare import compare
    from mill.checks.subjects import labelled, open_subjects
    from mill.models.spec.parse import backend_name, make_spec, split_list

    prepared = read_options(ctx, values, default_prompts=PROMPTS)
    names = split_list(backends)
    if len(names) < 2:
        raise SpecError(f"--backends {backends!r}: at least two are needed")
    urls = [part.strip() for part in (base_urls or "").split(",")]
    if base_urls is not None and len(urls) != len(names):
        raise SpecError(f"--base_urls has {len(urls)} entries for {len(names)} backends; leave one empty for none")
    urls += [""] * (len(names) - len(urls))
    specs = [make_spec(model, backend=name, base_url=url) for name, url in zip(names, urls, strict=True)]
    if len(set(zip(names, urls, strict=True))) < len(names):
        raise SpecError(f"--backends {backends}: one of them is listed twice with the same address")
    short = [backend_name(name) for name in names]
    labels = [name if short.count(name) == 1 else None for name in short]
    subjects = open_subjects(labelled(specs, labels), prepared.config)
    forced = prepared.options.forced_tokens
    return finish(prepared, lambda: compare("diff", subjects, prepared.config, forced_tokens=forced))
