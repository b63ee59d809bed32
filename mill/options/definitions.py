"""The options of every command that runs a model: `RunOptions`, with their types and checks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from mill.api.errors import SpecError
from mill.api.reasoning import read_tags
from mill.api.request import LARGEST_SEED, NUMBER_OPTIONS, option_name
from mill.api.request import check_options as check_decoding
from mill.options.option import hints, shown
from mill.options.text import parse_pairs, read_list
from mill.plan.sampling import ALPHA, read_claim
from mill.sandbox.isolation import DEFAULT_IMAGE, Container
from mill.support.files import check_path

if TYPE_CHECKING:
    pass

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


def check_tags(given: Any) -> None:
    read_tags(given)


def check_paths(given: str | list[str]) -> None:
    for path in [given] if isinstance(given, str) else given:
        check_path(path)


def refuse_unused_image(sandbox: str | None, image: str | None) -> None:
    if image is not None and sandbox != Container.name:
        raise SpecError(f"--sandbox_image {shown(image)} has no effect without --sandbox {Container.name}")


class RunOptions(msgspec.Struct, kw_only=True, frozen=True):
    """What every command that runs a model takes."""

    output_dir: Annotated[
        Text,
        Meta(description="Folder of the results.", extra=hints(hidden=("output",), check=check_paths, expected="a path")),
    ] = DEFAULT_OUTPUT_DIR
    limit: Annotated[
        Count | Fraction | None,
        Meta(
            description="Samples of each task or prompt suite: a count (100) or a fraction (0.1).",
            examples=[100, 0.1],
            extra=hints(
                aliases=("num_prompts",),
                expected="a number: a whole count of at least 1, or a fraction above 0 and up to 1.0",
            ),
        ),
    ] = None
    sample: Annotated[
        Count | Fraction | None,
        Meta(
            description="A random sample, stratified by subject or category, of each task or benchmark: a count (1000, for "
            "all of mmlu) or a fraction (0.1). A larger one contains a smaller one of the same seed.",
            examples=[1000, 0.1],
            extra=hints(expected="a number: a whole count of at least 1, or a fraction above 0 and up to 1.0"),
        ),
    ] = None
    decide: Annotated[
        Text | None,
        Meta(
            description="Run random samples until this claim about the score of the whole test set is decided: acc>0.6, or "
            "acc_drop>0.01 of compare.",
            examples=["acc>0.6"],
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
            examples=[{"temperature": 0.7, "until": ["\n\n"]}],
            extra=hints(from_text=parse_pairs, check=check_gen_kwargs, expected="key=value,key=value or a mapping"),
        ),
    ] = {}
    max_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=10**9)] | None,
        Meta(
            description="Most tokens of an answer; the same option as max_gen_toks in gen_kwargs.",
            extra=hints(
                aliases=("max_gen_toks",), hidden=("max_new_tokens",), default="the task's or prompt's own, else 256"
            ),
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
            examples=[{"enable_thinking": False}],
            extra=hints(from_text=parse_pairs, check=check_variables, expected="key=value,key=value or a mapping"),
        ),
    ] = {}
    reasoning_tags: Annotated[
        list[Text] | None,
        Meta(
            description="What the model writes before and after its reasoning, which is not scored; none to score it with "
            "the answer.",
            examples=[["<think>", "</think>"]],
            extra=hints(from_text=read_tag_list, check=check_tags, default="<think>,</think>"),
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
            examples=["http://127.0.0.1:8000"],
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
    quiet: Annotated[bool, Meta(description="Show no progress.")] = False

    def __post_init__(self) -> None:
        refuse_unused_image(self.sandbox, self.sandbox_image)
        if self.alpha != ALPHA and self.decide is None:
            raise SpecError("--alpha has no effect without --decide")

    @property
    def decoding(self) -> dict[str, Any]:
        """`gen_kwargs` with the token limit of `max_tokens`."""
        if self.max_tokens is None:
            return dict(self.gen_kwargs)
        return {**self.gen_kwargs, "max_gen_toks": self.max_tokens}

    @property
    def reasoning(self) -> dict[str, Any]:
        """What `RenderSettings` takes about reasoning."""
        return {
            "reasoning_effort": self.reasoning_effort,
            "chat_template_kwargs": self.chat_template_kwargs,
            "reasoning_tags": None if self.reasoning_tags is None else tuple(self.reasoning_tags),
        }


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
