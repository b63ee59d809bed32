"""The options of the check commands (compare, sweep, diff, stress, determinism) and of `mill.compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from mill.api.task import RenderSettings
from mill.checks.forced import FORCED_TOKENS
from mill.options.definitions import RunOptions, Text
from mill.options.option import hints
from mill.options.text import read_list
from mill.runs.claims import read_claim

if TYPE_CHECKING:
    from mill.checks.subjects import CheckConfig
    from mill.runs.sampling import SampleChoice


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

    @property
    def samples(self) -> SampleChoice | None:
        """Which samples run, where not those of the limit."""
        from mill.checks.decide import refuse_claim
        from mill.runs.sampling import SampleChoice

        claim = read_claim(self.decide, self.alpha)
        if claim is not None:
            refuse_claim(claim)
        if self.sample is None and claim is None:
            return None
        return SampleChoice(limit=self.limit, sample=self.sample, decide=claim)

    def config(self, selection: Any, *, top_logprobs: int | None) -> CheckConfig:
        """What the models are sent. `top_logprobs` are requested for every generated token."""
        from mill.api.request import generation_options
        from mill.checks.subjects import CheckConfig

        gen_kwargs = self.decoding
        if top_logprobs:
            gen_kwargs.setdefault("logprobs", top_logprobs)
        generation_options(**gen_kwargs)
        settings = RenderSettings(
            n_shots=self.n_shots,
            seed=self.seed,
            gen_kwargs=gen_kwargs,
            system_prompt=self.system_prompt,
            **self.reasoning,
        )
        return CheckConfig(
            selection,
            settings,
            Path(self.output_dir),
            self.limit,
            self.quiet,
            wait=self.wait,
            fresh=self.fresh,
            samples=self.samples,
            chat=self.chat,
        )
