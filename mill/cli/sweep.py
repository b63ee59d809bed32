"""`mill sweep`: several models, such as quantizations of one, against a baseline."""

from __future__ import annotations

from typing import Any

import click

from mill.api.errors import SpecError, UnknownName
from mill.cli.check_options import check_options, finish, forced_option, read_options
from mill.cli.compare import PROMPTS
from mill.cli.options import option

EXAMPLES = """
\b
Examples:
  mill sweep --models "bf16=org/model,8bit=mlx-community/model-8bit,4bit=mlx-community/model-4bit" --baseline bf16
  mill sweep --models "f16=hf[path=./m,dtype=float16],f32=hf[path=./m,dtype=float32]" --baseline f32 --tasks mmlu_anatomy
"""


@click.command("sweep", epilog=EXAMPLES)
@click.option("--models", required=True, help='Labelled models: "bf16=org/a,4bit=org/b".')
@click.option("--baseline", default=None, help="Label of the baseline. [default: the first]")
@click.option("--backend", default=None, help="Backend of all models. [default: detected from each spec]")
@option("base_url")
@forced_option()
@check_options(PROMPTS)
@click.pass_context
def command(ctx: click.Context, /, models: str, baseline: str | None, backend: str | None, **values: Any) -> int:
    """Compare every model with the baseline, on prompts or tasks; prompts go through the chat template where all models
    have one."""
    from mill.checks.compare import compare
    from mill.checks.subjects import labelled, open_subjects
    from mill.models.spec.parse import make_spec, split_list

    prepared = read_options(ctx, values, default_prompts=PROMPTS)
    parts = [_labelled(part) for part in split_list(models)]
    if len(parts) < 2:
        raise SpecError(f"--models {models!r}: a sweep needs at least two models")
    address = prepared.options.base_url or ""
    specs = [make_spec(model, backend=backend or "", base_url=address) for _, model in parts]
    named = labelled(specs, [label for label, _ in parts])
    labels = [label for label, _ in named]
    if baseline is not None and baseline not in labels:
        raise UnknownName("baseline", baseline, labels, hint=f"labels are {', '.join(labels)}")
    named.sort(key=lambda pair: pair[0] != (baseline or labels[0]))  # the baseline first, the others as given
    subjects = open_subjects(named, prepared.config)
    forced = prepared.options.forced_tokens
    return finish(prepared, lambda: compare("sweep", subjects, prepared.config, forced_tokens=forced))


def _labelled(text: str) -> tuple[str | None, str]:
    """`label=model`; an equals sign inside brackets belongs to the model's arguments."""
    label, equals, model = text.partition("=")
    if not equals or "[" in label or "/" in label:
        return None, text
    if not label.strip() or not model.strip():
        raise SpecError(f"--models: {text!r} is not label=model")
    return label.strip(), model.strip()
