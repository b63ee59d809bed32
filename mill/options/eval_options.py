"""The options of `mill eval`, run files and `mill.evaluate`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from mill.api.budget import BudgetLimits
from mill.api.errors import SpecError
from mill.api.request import option_name
from mill.api.task import MAX_PERMUTATIONS, MAX_ROUNDS, MOST, RenderSettings
from mill.options.definitions import AUTO, MAX_REPEATS, Count, RunOptions, Text
from mill.options.option import hints
from mill.options.text import check_price, make_price, parse_pairs, read_dollars, read_list, read_seconds, read_tokens
from mill.plan.sampling import read_claim

if TYPE_CHECKING:
    from mill.plan.sampling import SampleChoice
    from mill.runs.evaluate import RunConfig


import re
from collections.abc import Iterator

from mill.options.option import options_of, read_all
from mill.support.validate import read_yaml

_UNWRITABLE = re.compile("[\x00\ud800-\udfff]")


def read_run_file(path: str) -> dict[str, Any]:
    """The options in a run file, checked, by name."""
    given = read_yaml(path, "run file")
    if given is None:
        raise SpecError(f"the run file {path} is empty")
    for name, value in given.items():
        if any(_UNWRITABLE.search(text) for text in _texts(value)):
            raise SpecError(f"{name} in {path} has an invalid character: NUL, or half of a surrogate pair")
    return read_all(given, options_of(EvalOptions), f"option in {path}", suffix=f" in {path}")


def run_file_schema() -> dict[str, Any]:
    """A JSON schema (draft 2020-12) of run files. Editors complete the names; other spellings are patterns."""
    options = options_of(EvalOptions)
    patterns = {
        f"^{spelling.replace('_', '[-_]')}$": {"$ref": f"#/properties/{option.name}"}
        for option in options.values()
        for spelling in option.names
        if "_" in spelling or spelling != option.name
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "mill run file",
        "description": "Options of `mill eval --config FILE`. The command line wins over the file.",
        "type": "object",
        "properties": {name: option.json_schema() for name, option in options.items()},
        "patternProperties": patterns,
        "additionalProperties": False,
    }


def _texts(value: Any) -> Iterator[str]:
    """The texts of a value: itself, those of a list, or the names, values and lists of a mapping."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        yield from (text for text in value if isinstance(text, str))
    elif isinstance(value, dict):
        for part in (*value, *value.values()):
            yield from (text for text in (part if isinstance(part, list) else [part]) if isinstance(text, str))


class EvalOptions(RunOptions, kw_only=True, frozen=True):
    """A whole `mill eval`, from the command line and the run file together."""

    models: Annotated[
        list[Text],
        Meta(
            description="Models to evaluate, comma-separated.",
            examples=[["hf[path=org/name]"]],
            extra=hints(from_text=read_list),
        ),
    ] = []
    tasks: Annotated[
        list[Text],
        Meta(
            description="Tasks, benchmarks, patterns (mmlu_*) or data files, comma-separated.",
            examples=[["mmlu", "gsm8k"]],
            extra=hints(from_text=read_list),
        ),
    ] = []
    sample_ids: Annotated[
        list[Text],
        Meta(
            description="Only the samples with these ids, comma-separated, within the limit.",
            examples=[["17", "42"]],
            extra=hints(from_text=read_list),
        ),
    ] = []
    precision: Annotated[
        Annotated[float, Meta(gt=0, lt=0.5)] | None,
        Meta(
            description="The smallest random sample whose 95 % interval of the first metric is at most this much to either "
            "side for any score: 0.02. It is extended where the data need more.",
            examples=[0.02],
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
            examples=[["pass@1", "pass@5"]],
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
            extra=hints(default="one message with all; lm-eval's own for its tasks"),
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
    executor: Annotated[
        Literal["local", "ray"],
        Meta(
            description="Where the model runs: in this process, or on workers of a Ray cluster.",
            extra=hints(hidden=("engine",), old_values={"here": "local"}),
        ),
    ] = "local"
    workers: Annotated[
        Count | None,
        Meta(description="Ray: processes that each load the model; else workers of a server with several addresses."),
    ] = None
    address: Annotated[
        Text | None, Meta(description="Ray: address of the cluster.", extra=hints(default="a cluster on this machine"))
    ] = None
    gpus_per_worker: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(description="Ray: GPUs of each worker.", extra=hints(default="1 on a cluster with GPUs")),
    ] = None
    log_to: Annotated[
        list[Text],
        Meta(
            description="Trackers that get the run when it ends, comma-separated: mlflow, wandb or trackio, as for "
            "`mill export --to`.",
            examples=[["mlflow:http://127.0.0.1:5000"]],
            extra=hints(from_text=read_list),
        ),
    ] = []
    max_tokens_total: Annotated[
        Annotated[int, Meta(ge=1, le=10**15)] | None,
        Meta(
            description="Budget of the whole run: prompt and output tokens (20M, 500k), over all processes and resumes. "
            "At a budget the run stops with exit code 4, and a larger one continues it.",
            examples=["20M"],
            extra=hints(
                from_text=read_tokens, metavar="TOKENS", expected="a number of tokens from 1 to 10^15, such as 20M or 500k"
            ),
        ),
    ] = None
    max_cost: Annotated[
        Annotated[float, Meta(gt=0, le=1e9)] | None,
        Meta(
            description="Budget of the whole run in dollars, by --price or LiteLLM's prices.",
            examples=[15],
            extra=hints(
                from_text=read_dollars, metavar="DOLLARS", expected="an amount of dollars above 0, up to 10^9, such as 15"
            ),
        ),
    ] = None
    max_time: Annotated[
        Annotated[float, Meta(gt=0, le=1e9)] | None,
        Meta(
            description="Budget of the whole run: wall time of all sessions (2h, 90m, 1h30m, or seconds).",
            examples=["2h"],
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
            examples=[{"in": 0.15, "out": 0.6}],
            extra=hints(
                from_text=parse_pairs,
                check=check_price,
                expected="in=PRICE,out=PRICE or a mapping",
                default="LiteLLM's for its models, else unknown",
            ),
        ),
    ] = {}
    judge_price: Annotated[
        dict[Any, Any],
        Meta(
            description="The same for the judge.",
            extra=hints(
                from_text=parse_pairs,
                check=check_price,
                expected="in=PRICE,out=PRICE or a mapping",
                default="LiteLLM's for its models, else unknown",
            ),
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
        from mill.plan.sampling import SampleChoice

        return SampleChoice(
            limit=self.limit,
            sample=self.sample,
            precision=self.precision,
            decide=read_claim(self.decide, self.alpha),
            sample_ids=tuple(self.sample_ids),
        )

    @property
    def settings(self) -> RenderSettings:
        return RenderSettings(
            n_shots=self.n_shots,
            seed=self.seed,
            repeats=self.repeats,
            gen_kwargs=self.decoding,
            system_prompt=self.system_prompt,
            apply_chat_template=bool(self.apply_chat_template),
            fewshot_as_multiturn=self.fewshot_as_multiturn,
            same_shots=self.same_shots,
            cot=self.cot,
            shuffle_choices=self.shuffle_choices,
            permutations=self.permutations,
            max_rounds=self.max_rounds,
            max_tool_output=self.max_tool_output,
            **self.reasoning,
        )

    @property
    def run(self) -> RunConfig:
        """What a run is made of beside its model and tasks."""
        from mill.execute.workers import ExecutorChoice
        from mill.metrics.repeats import read_repeat_metrics
        from mill.models.spec.parse import Spec, make_spec
        from mill.runs.evaluate import RunConfig

        repeat_metrics = read_repeat_metrics(self.repeat_metrics, self.repeats, judged=self.judge is not None)
        return RunConfig(
            output_dir=Path(self.output_dir),
            settings=self.settings,
            samples=self.samples,
            fresh=self.fresh,
            batch_size=None if self.batch_size == AUTO else int(self.batch_size),
            wait=self.wait,
            exact=self.exact,
            chat=self.apply_chat_template,
            executor=ExecutorChoice(self.executor, self.workers, self.address, self.gpus_per_worker),
            judge=self.judge if self.judge is None or isinstance(self.judge, Spec) else make_spec(self.judge),
            repeat_metrics=repeat_metrics,
            limits=self.limits,
            price=make_price(self.price),
            judge_price=make_price(self.judge_price),
        )


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
