"""The options of every command that runs a model, with their types and checks, and run files, which hold them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from mill.api.budget import BudgetLimits
from mill.api.engine import BUILD, EVERY, INSTANCE, SAME, Reuse
from mill.api.errors import SpecError
from mill.api.request import LARGEST_SEED, NUMBER_OPTIONS, option_name, read_tags
from mill.api.request import check_options as check_decoding
from mill.api.task import MAX_PERMUTATIONS, MAX_ROUNDS, MOST, RenderSettings
from mill.options.option import (
    check_price,
    hints,
    make_price,
    options_of,
    parse_pairs,
    read_all,
    read_dollars,
    read_list,
    read_seconds,
    read_tokens,
    shown,
)
from mill.plan.sampling import ALPHA, SampleChoice, read_claim
from mill.sandbox.isolation import DEFAULT_IMAGE, Container
from mill.support.files import check_path
from mill.support.validate import read_yaml

if TYPE_CHECKING:
    from mill.runs.evaluate import RunConfig

DEFAULT_OUTPUT_DIR = "results"
MAX_REPEATS = 10_000
MAX_SHOTS = 1_000_000
AUTO = "auto"

Count = Annotated[int, Meta(ge=1)]
Fraction = Annotated[float, Meta(gt=0, le=1)]
Text = Annotated[str, Meta(pattern=r"\S")]


def check_gen_kwargs(given: Mapping[Any, Any]) -> None:
    pairs = parse_pairs(given)
    check_decoding(pairs, "gen_kwargs")
    for name, value in pairs.items():
        if isinstance(value, str) and option_name(name) in NUMBER_OPTIONS:
            raise SpecError(f"the decoding option {name} must be a number, not the text {value!r}")


# What `apply_chat_template` takes beside variables, and what mill or the package sets in every chat template.
_SET_BY_MILL = (
    "add_generation_prompt", "chat_template", "continue_final_message", "conversation", "conversations", "max_length",
    "messages", "padding", "processor_kwargs", "raise_exception", "return_assistant_tokens_mask", "return_dict",
    "return_tensors", "self", "strftime_now", "tokenize", "tokenizer_kwargs", "tools", "truncation",
)  # fmt: skip


def check_variables(given: Mapping[Any, Any]) -> None:
    for name in parse_pairs(given):
        if not str(name).isidentifier():
            raise SpecError(f"{name!r} is no name of a variable")
        if name in _SET_BY_MILL or name.startswith("__"):
            raise SpecError(f"{shown(name)} is no variable of the chat template alone: mill sets it, or its package does")


def check_image(name: str) -> None:
    """The name goes into a command line: one that begins with - would be an option there."""
    if name.startswith("-") or not name.isprintable() or any(sign.isspace() for sign in name):
        raise SpecError(f"{shown(name)} is no name of an image")


def read_tag_list(text: str) -> list[str]:
    return list(read_tags(text))


def check_paths(given: str | list[str]) -> None:
    for path in [given] if isinstance(given, str) else given:
        check_path(path)


def refuse_unused_image(sandbox: str | None, image: str | None) -> None:
    if image is not None and sandbox != Container.name:
        raise SpecError(f"--sandbox_image {shown(image)} has no effect without --sandbox {Container.name}")


_PRICE = hints(
    from_text=parse_pairs,
    check=check_price,
    expected="in=PRICE,out=PRICE or a mapping",
    default="LiteLLM's for its models, else unknown",
)
_PART = "a number: a whole count of at least 1, or a fraction above 0 and up to 1.0"


class RunOptions(msgspec.Struct, kw_only=True, frozen=True):
    """What every command that runs a model takes."""

    output_dir: Annotated[
        Text,
        Meta(description="Folder of the results.", extra=hints(aliases=("output",), check=check_paths, expected="a path")),
    ] = DEFAULT_OUTPUT_DIR
    limit: Annotated[
        Count | Fraction | None,
        Meta(
            description="Samples of each task or prompt suite: a count (100) or a fraction (0.1).",
            extra=hints(aliases=("num_prompts",), expected=_PART),
        ),
    ] = None
    sample: Annotated[
        Count | Fraction | None,
        Meta(
            description="A random sample, stratified by subject or category, of each task or benchmark: a count (1000, for "
            "all of mmlu) or a fraction (0.1). A larger one contains a smaller one of the same seed.",
            extra=hints(expected=_PART),
        ),
    ] = None
    decide: Annotated[
        Text | None,
        Meta(
            description="Run random samples until this claim about the score of the whole test set is decided: acc>0.6, or "
            "acc_drop>0.01 of compare.",
            extra=hints(check=read_claim),
        ),
    ] = None
    alpha: Annotated[
        float, Meta(gt=0, le=0.5, description="The largest error rate of --decide, however often the data are tested.")
    ] = ALPHA
    n_shots: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_SHOTS)] | None,
        Meta(
            description="Few-shot examples of each question.",
            extra=hints(aliases=("num_fewshot",), default="the task's own"),
        ),
    ] = None
    seed: Annotated[
        Annotated[int, Meta(ge=-LARGEST_SEED, le=LARGEST_SEED)] | None,
        Meta(
            description="Seed of few-shot selection and of sampling.", extra=hints(default="0; lm-eval's own for its tasks")
        ),
    ] = None
    gen_kwargs: Annotated[
        dict[Any, Any],
        Meta(
            description="Decoding options: temperature=0.7,until=[a,b].",
            extra=hints(from_text=parse_pairs, check=check_gen_kwargs, expected="key=value,key=value or a mapping"),
        ),
    ] = {}
    max_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=10**9)] | None,
        Meta(
            description="Most tokens of an answer; the same option as max_gen_toks in gen_kwargs.",
            extra=hints(aliases=("max_gen_toks", "max_new_tokens"), default="the task's or prompt's own, else 256"),
        ),
    ] = None
    reasoning_effort: Annotated[
        Literal["none", "low", "medium", "high"] | None,
        Meta(description="How long a reasoning model thinks before it answers.", extra=hints(default="the model's own")),
    ] = None
    chat_template_kwargs: Annotated[
        dict[Any, Any],
        Meta(
            description="Variables of the chat template: enable_thinking=false.",
            extra=hints(from_text=parse_pairs, check=check_variables, expected="key=value,key=value or a mapping"),
        ),
    ] = {}
    reasoning_tags: Annotated[
        list[Text] | None,
        Meta(
            description="What the model writes before and after its reasoning, which is not scored; none to score it with "
            "the answer.",
            extra=hints(from_text=read_tag_list, check=read_tags, default="<think>,</think>"),
        ),
    ] = None
    system_prompt: Annotated[
        str | None, Meta(description="System message, or text before the prompt where no chat template is applied.")
    ] = None
    task_paths: Annotated[
        list[Text],
        Meta(
            description="Python files or folders that register tasks or backends, or folders of YAML tasks for "
            "lm-eval:NAME, comma-separated.",
            extra=hints(aliases=("include_path",), from_text=read_list, check=check_paths),
        ),
    ] = []
    base_url: Annotated[
        Text | None,
        Meta(
            description="Address of the server, for models that name none. A bare model name is then served by an "
            "OpenAI-compatible server.",
        ),
    ] = None
    no_remote_code: Annotated[bool, Meta(description="Never run Python code that comes with a model.")] = False
    confirm_run_unsafe_code: Annotated[
        bool, Meta(description="Run tasks whose scoring executes code that the model wrote.")
    ] = False
    sandbox: Annotated[
        Literal["bubblewrap", "docker", "none"],
        Meta(
            description="What isolates code that the model wrote; docker is Docker or Podman. none needs "
            "--confirm_run_unsafe_code."
        ),
    ] = "bubblewrap"
    sandbox_image: Annotated[
        Text | None,
        Meta(description="The image of --sandbox docker.", extra=hints(check=check_image, default=DEFAULT_IMAGE)),
    ] = None
    wait: Annotated[float, Meta(ge=0, description="Seconds to wait for a server to start.")] = 0.0
    fresh: Annotated[bool, Meta(description="Recompute everything into a new run; reuse no recorded answers.")] = False
    reuse_engines: Annotated[
        bool, Meta(description="Reuse recorded answers of other versions or builds of the engine, too.")
    ] = False
    quiet: Annotated[bool, Meta(description="Show no progress.")] = False

    def __post_init__(self) -> None:
        refuse_unused_image(self.sandbox, self.sandbox_image)
        if self.alpha != ALPHA and self.decide is None:
            raise SpecError("--alpha has no effect without --decide")

    @property
    def reuse(self) -> Reuse:
        """Which recorded answers are not asked for again."""
        return Reuse(EVERY if self.reuse_engines else BUILD)

    @property
    def decoding(self) -> dict[str, Any]:
        """`gen_kwargs` with the token limit of `max_tokens`."""
        if self.max_tokens is None:
            return dict(self.gen_kwargs)
        return {**self.gen_kwargs, "max_gen_toks": self.max_tokens}

    def render_settings(self, **others: Any) -> RenderSettings:
        """The settings that have the name of an option; `others` are those that it does not decide alone."""
        shared = {field.name for field in fields(RenderSettings)} & {*self.__struct_fields__} - {*others}
        tags = None if self.reasoning_tags is None else tuple(self.reasoning_tags)
        return RenderSettings(**{name: getattr(self, name) for name in shared} | {"reasoning_tags": tags} | others)


class EvalOptions(RunOptions, kw_only=True, frozen=True):
    """A whole `mill eval`, from the command line and the run file together."""

    models: Annotated[
        list[Text],
        Meta(
            description="Models to evaluate, comma-separated.",
            extra=hints(from_text=read_list),
        ),
    ] = []
    tasks: Annotated[
        list[Text],
        Meta(
            description="Tasks, benchmarks, patterns (mmlu_*) or data files, comma-separated.",
            extra=hints(from_text=read_list),
        ),
    ] = []
    sample_ids: Annotated[
        list[Text],
        Meta(
            description="Only the samples with these ids, comma-separated, within the limit.",
            extra=hints(from_text=read_list),
        ),
    ] = []
    precision: Annotated[
        Annotated[float, Meta(gt=0, lt=0.5)] | None,
        Meta(
            description="The smallest random sample whose 95 % interval of the first metric is at most this much to either "
            "side for any score: 0.02. It is extended where the data need more.",
            extra=hints(expected="a number above 0 and below 0.5"),
        ),
    ] = None
    same_shots: Annotated[
        bool, Meta(description="The first few-shot examples for every question, instead of a draw for each.")
    ] = False
    cot: Annotated[
        bool, Meta(description="Tasks NAME_gen: think step by step before the letter of a choice, in up to 1024 tokens.")
    ] = False
    shuffle_choices: Annotated[
        bool, Meta(description="Tasks NAME_gen: list the choices in an order drawn by the seed and the sample.")
    ] = False
    permutations: Annotated[
        int,
        Meta(
            ge=1,
            le=MAX_PERMUTATIONS,
            description="Tasks NAME_gen: send each question with its choices in this many orders, and report how much the "
            "order matters.",
        ),
    ] = 1
    repeats: Annotated[int, Meta(ge=1, le=MAX_REPEATS, description="Answers sampled for each question.")] = 1
    repeat_metrics: Annotated[
        list[Text] | None,
        Meta(
            description="Metrics over the answers to a question, comma-separated: pass@K (at least one of K is right), "
            "maj@K (the most frequent answer of K), avg@K (the first K), best@K (the one that the judge rates highest).",
            extra=hints(from_text=read_list, default="pass@K and maj@K of all --repeats"),
        ),
    ] = None
    batch_size: Annotated[
        Count | Literal["auto"], Meta(description="Requests per batch, or auto. A batch_size in the model spec wins.")
    ] = "auto"
    apply_chat_template: Annotated[
        bool | None,
        Meta(
            description="Render prompts with the model's chat template: for all models of the command, as "
            "use_chat_template=true in a spec does for one model. Both names work in both places.",
            extra=hints(aliases=("use_chat_template",)),
        ),
    ] = None
    fewshot_as_multiturn: Annotated[
        bool | None,
        Meta(
            description="With a chat template: each few-shot example as a turn of the user and one of the assistant.",
            extra=hints(default="one message with all; lm-eval's own for its tasks", off="no_fewshot_as_multiturn"),
        ),
    ] = None
    exact: Annotated[bool, Meta(description="hf: compute every row by itself, without shared prefixes or padding.")] = False
    judge: Annotated[Text | None, Meta(description="Model spec of the judge, which grades the answers of judged tasks.")] = (
        None
    )
    max_rounds: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_ROUNDS)] | None,
        Meta(description="Most rounds of a dialog with tools.", extra=hints(default="the task's own")),
    ] = None
    max_tool_output: Annotated[
        Annotated[int, Meta(ge=1, le=MOST)] | None,
        Meta(description="Most characters of a tool's output that the model gets.", extra=hints(default="the task's own")),
    ] = None
    workers: Annotated[
        Count | None,
        Meta(
            description="Threads that send requests to the servers of a model with several addresses.",
            extra=hints(default="one for each address"),
        ),
    ] = None
    log_to: Annotated[
        list[Text],
        Meta(
            description="Trackers that get the run when it ends, comma-separated: mlflow, wandb or trackio, as for "
            "`mill export --to`.",
            extra=hints(from_text=read_list),
        ),
    ] = []
    max_tokens_total: Annotated[
        Annotated[int, Meta(ge=1, le=10**15)] | None,
        Meta(
            description="Budget of the whole run: prompt and output tokens (20M, 500k), over all processes and resumes. "
            "At a budget the run stops with exit code 4, and a larger one continues it.",
            extra=hints(
                from_text=read_tokens, metavar="TOKENS", expected="a number of tokens from 1 to 10^15, such as 20M or 500k"
            ),
        ),
    ] = None
    max_cost: Annotated[
        Annotated[float, Meta(gt=0, le=1e9)] | None,
        Meta(
            description="Budget of the whole run in dollars, by --price or LiteLLM's prices.",
            extra=hints(
                from_text=read_dollars, metavar="DOLLARS", expected="an amount of dollars above 0, up to 10^9, such as 15"
            ),
        ),
    ] = None
    max_time: Annotated[
        Annotated[float, Meta(gt=0, le=1e9)] | None,
        Meta(
            description="Budget of the whole run: wall time of all sessions (2h, 90m, 1h30m, or seconds).",
            extra=hints(
                from_text=read_seconds,
                metavar="TIME",
                expected="a time above 0, up to 10^9 seconds, such as 2h, 1h30m, 90s or 90",
            ),
        ),
    ] = None
    price: Annotated[
        dict[Any, Any],
        Meta(
            description="What the model's tokens cost, in dollars for a million: in=0.15,out=0.60, also cached= and "
            "reasoning=.",
            extra=_PRICE,
        ),
    ] = {}
    judge_price: Annotated[
        dict[Any, Any],
        Meta(
            description="The same for the judge.",
            extra=_PRICE,
        ),
    ] = {}
    dry_run: Annotated[
        bool,
        Meta(description="Show what would run, and estimate its tokens, cost and time, without loading weights."),
    ] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.judge_price and not self.judge:
            raise SpecError("--judge_price has no effect without --judge")

    @property
    def limits(self) -> BudgetLimits:
        return BudgetLimits(self.max_tokens_total, self.max_cost, self.max_time)

    @property
    def samples(self) -> SampleChoice:
        """Which samples run."""
        return SampleChoice(
            limit=self.limit,
            sample=self.sample,
            precision=self.precision,
            decide=read_claim(self.decide, self.alpha),
            sample_ids=tuple(self.sample_ids),
        )

    @property
    def settings(self) -> RenderSettings:
        return self.render_settings(gen_kwargs=self.decoding, apply_chat_template=bool(self.apply_chat_template))

    @property
    def run(self) -> RunConfig:
        """What a run is made of beside its model and tasks."""
        from mill.metrics.aggregate import read_repeat_metrics
        from mill.models.spec.parse import Spec, make_spec
        from mill.runs.evaluate import RunConfig

        repeat_metrics = read_repeat_metrics(self.repeat_metrics, self.repeats, judged=self.judge is not None)
        return RunConfig(
            output_dir=Path(self.output_dir),
            settings=self.settings,
            samples=self.samples,
            fresh=self.fresh,
            reuse=self.reuse,
            batch_size=None if self.batch_size == AUTO else int(self.batch_size),
            wait=self.wait,
            exact=self.exact,
            chat=self.apply_chat_template,
            workers=self.workers,
            judge=self.judge if self.judge is None or isinstance(self.judge, Spec) else make_spec(self.judge),
            repeat_metrics=repeat_metrics,
            limits=self.limits,
            price=make_price(self.price),
            judge_price=make_price(self.judge_price),
        )


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
    chat: Annotated[
        bool | None, Meta(description="Apply the chat template, or send plain text.", extra=hints(off="no_chat"))
    ] = None
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
    reuse_for: Annotated[
        Annotated[float, Meta(gt=0, le=1e9)] | None,
        Meta(
            description="With rules: how old answers of another start of the server may be (12h, 90m). Without it they are "
            "asked for again.",
            extra=hints(from_text=read_seconds, metavar="TIME", expected="a time above 0, such as 12h, 90m or 90"),
        ),
    ] = None
    strict: Annotated[bool, Meta(description="Count an inconclusive rule as broken.")] = False
    report: Annotated[
        bool, Meta(description="Write report.html beside the check. [default: on]", extra=hints(off="no_report"))
    ] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reuse_for and not (self.fail_on or self.require):
            raise SpecError("--reuse_for has no effect without --fail_on or --require")

    @property
    def reuse(self) -> Reuse:
        """A check compares builds, and one with rules judges what answers now."""
        if self.reuse_engines:
            return Reuse(EVERY)
        return Reuse(INSTANCE if self.fail_on or self.require else SAME, within_s=self.reuse_for or 0.0)


def merge(*sources: Mapping[str, Any]) -> dict[str, Any]:
    """Checked values of several sources; an earlier source wins.

    The token limit is one option with two spellings: a source that gives either replaces both of a later one.
    """
    merged: dict[str, Any] = {}
    for source in sources:
        values, limited = dict(source), "max_tokens" in merged or _token_limits(merged)
        inside = _token_limits(values)
        if inside and "max_tokens" in values:
            raise SpecError(f"max_tokens and {inside[0]} in gen_kwargs are one option: give one of them")
        if limited:
            values.pop("max_tokens", None)
            values["gen_kwargs"] = {name: v for name, v in values.get("gen_kwargs", {}).items() if name not in inside}
        merged = {**values, **merged}
    return merged


def _token_limits(values: Mapping[str, Any]) -> list[str]:
    return [name for name in values.get("gen_kwargs", {}) if option_name(name) == "max_gen_toks"]


def read_run_file(path: str) -> dict[str, Any]:
    """The options in a run file, checked, by name."""
    given = read_yaml(path, "run file")
    if given is None:
        raise SpecError(f"the run file {path} is empty")
    return read_all(given, options_of(EvalOptions), f"option in {path}", suffix=f" in {path}")
