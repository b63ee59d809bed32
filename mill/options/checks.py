"""The options of the check commands (compare, sweep, diff, stress, determinism) and of `mill.compare`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from mill.options.definitions import RunOptions, Text
from mill.options.option import hints
from mill.options.text import read_list

FORCED_TOKENS = 32  # of each answer, by default


class CheckOptions(RunOptions, kw_only=True, frozen=True):
    """A check, except for the models it reads."""

    prompts: Annotated[
        list[Text] | None,
        Meta(description="Prompt suites or .jsonl files, comma-separated.", extra=hints(from_text=read_list)),
    ] = None
    tasks: Annotated[
        list[Text] | None,
        Meta(description="Tasks or benchmarks instead of prompts, comma-separated.", extra=hints(from_text=read_list)),
    ] = None
    chat: Annotated[bool | None, Meta(description="Apply the chat template, or send plain text.")] = None
    forced_tokens: Annotated[
        int, Meta(ge=0, description="Tokens of each baseline answer that both models score, for KL; 0 for none.")
    ] = FORCED_TOKENS
    fail_on: Annotated[
        str | None,
        Meta(
            description='Rules that must not hold: "flip_rate>0.02, acc_drop>0.01@p<0.05". Exit code 3 if one does, 5 if '
            "the samples are too few to decide."
        ),
    ] = None
    require: Annotated[
        str | None,
        Meta(description='Rules that the 95 % interval must show: "acc_drop<0.01". Exit code 3 or 5 if it does not.'),
    ] = None
    strict: Annotated[bool, Meta(description="Count an inconclusive rule as broken.")] = False
    report: Annotated[bool, Meta(description="Write report.html beside the check.")] = True
