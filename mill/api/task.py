"""What a task is: data, rendering and scoring. A benchmark is a named set of tasks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from mill.api.errors import SpecError
from mill.api.message import Context, Media, Message
from mill.api.request import (
    CLASSIFY,
    EFFORTS,
    GENERATE,
    LARGEST_SEED,
    LOGLIKELIHOOD,
    MULTI_ROUND,
    ROLLING,
    ZERO_SHOT,
    Request,
    check_options,
    generation_options,
    option_name,
    read_tags,
)
from mill.api.response import Response
from mill.api.tools import Tool, ToolCall
from mill.support.files import hash_docs

if TYPE_CHECKING:
    from mill.api.judge import Judge


class TaskType(str, Enum):
    GENERATIVE_QA = "GENERATIVE_QA"
    MULTIPLE_CHOICE = "MULTIPLE_CHOICE"
    PERPLEXITY = "PERPLEXITY"
    ZERO_SHOT_CLASSIFICATION = "ZERO_SHOT_CLASSIFICATION"
    SUPERVISED_CLASSIFICATION = "SUPERVISED_CLASSIFICATION"


# The request kind of a task type, unless the task sets its own.
DEFAULT_KIND = {
    TaskType.GENERATIVE_QA: GENERATE,
    TaskType.MULTIPLE_CHOICE: LOGLIKELIHOOD,
    TaskType.PERPLEXITY: ROLLING,
    TaskType.ZERO_SHOT_CLASSIFICATION: ZERO_SHOT,
    TaskType.SUPERVISED_CLASSIFICATION: CLASSIFY,
}


@dataclass(frozen=True)
class Sample:
    """One item of a task's data. `id` is its index in the split, so it does not depend on order or limit of a run."""

    id: str
    doc: Mapping[str, Any]

    @cached_property
    def data_hash(self) -> str:
        """By which the samples of two runs are paired; empty where there is no data."""
        return hash_docs([self.doc]) if self.doc else ""


MOST = 10**6  # examples before a question, repeats of it, or characters of a tool's output
MAX_ROUNDS = 1000
MAX_PERMUTATIONS = 1000
Many = Annotated[int, Meta(ge=0, le=MOST)]
Some = Annotated[int, Meta(ge=1, le=MOST)]


@dataclass(frozen=True)
class RenderSettings:
    """How samples become requests, as far as the user may change it. None keeps the task's default. The types are checked
    where settings come from outside: in options, and in a manifest."""

    n_shots: Many | None = None
    seed: Annotated[int, Meta(ge=-LARGEST_SEED, le=LARGEST_SEED)] | None = None
    """Of few-shot draws and of sampling; a task may have its own default, and 0 is that of mill."""
    repeats: Some = 1
    gen_kwargs: Mapping[str, Any] = field(default_factory=dict)
    system_prompt: str | None = None
    apply_chat_template: bool = False
    fewshot_as_multiturn: bool | None = None
    """With a chat template: each example as a turn of the user and one of the assistant, instead of one message for all."""
    same_shots: bool = False
    """The first examples of their split for every question, instead of a draw for each."""
    cot: bool = False
    """Whether the model thinks step by step before it names a choice, where it generates the letter."""
    shuffle_choices: bool = False
    """The choices in an order drawn for each sample, where the prompt lists them."""
    permutations: Annotated[int, Meta(ge=1, le=MAX_PERMUTATIONS)] = 1
    """In how many orders of its choices each question is sent."""
    max_rounds: Annotated[int, Meta(ge=1, le=MAX_ROUNDS)] | None = None
    max_tool_output: Some | None = None
    reasoning_effort: str | None = None
    """How long a reasoning model thinks: none, low, medium or high."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Variables of the chat template, such as enable_thinking."""
    reasoning_tags: tuple[str, ...] | None = None
    """What the model writes before and after its reasoning; empty where it is not to be split from the answer."""

    def __post_init__(self) -> None:
        check_options(self.gen_kwargs, "gen_kwargs")
        if self.reasoning_effort is not None and self.reasoning_effort not in EFFORTS:
            raise SpecError(f"reasoning_effort={self.reasoning_effort!r}: one of {', '.join(EFFORTS)} is needed")
        if self.reasoning_tags is not None:
            read_tags(self.reasoning_tags)

    def served(self, request: Request) -> Request:
        """A request with the repeats of the run, and with what it says about reasoning among its options: that is part of
        the request's key."""
        request = replace(request, repeats=self.repeats) if request.repeats == 1 < self.repeats else request
        more: dict[str, Any] = {"reasoning_effort": self.reasoning_effort} if self.reasoning_effort else {}
        more |= {"chat_template_kwargs": dict(self.chat_template_kwargs)} if self.chat_template_kwargs else {}
        if self.reasoning_tags is not None and request.kind in (GENERATE, MULTI_ROUND):
            more["reasoning_tags"] = tuple(self.reasoning_tags)
        return replace(request, options={**request.options, **more}) if more else request

    @property
    def reorders_choices(self) -> bool:
        return self.shuffle_choices or self.permutations > 1

    @property
    def choice_options(self) -> list[str]:
        """The options given that apply only where the prompt lists choices and the model generates a letter."""
        given = {"--cot": self.cot, "--shuffle_choices": self.shuffle_choices, "--permutations": self.permutations > 1}
        return [option for option, is_given in given.items() if is_given]

    def options(self, **defaults: Any) -> dict[str, Any]:
        """Decoding options: a task's defaults, overridden by those of the run. Sampling is seeded by the seed among the
        decoding options, else by the run's."""
        given = {option_name(name): value for name, value in self.gen_kwargs.items()}
        if given.get("seed") is None:
            given["seed"] = self.seed or 0
        return generation_options(**{**defaults, **given})

    def frame(self, text: str, description: str = "", turns: Sequence[tuple[str, str]] = ()) -> Context:
        """A prompt with the run's system prompt and a task's description in front.

        For a chat template both are the system message and the rest is one user message; else all of it is one text.
        `turns` are examples, each with its answer, that come before as messages of their own.
        """
        if self.apply_chat_template:
            system = "\n\n".join(part for part in (self.system_prompt, description.strip()) if part)
            before = [Message(role, part) for turn in turns for role, part in zip(("user", "assistant"), turn, strict=True)]
            return (*((Message("system", system),) if system else ()), *before, Message("user", text))
        return (f"{self.system_prompt}\n\n" if self.system_prompt else "") + description + text

    def dialog(self, *parts: str | Media) -> tuple[Message, ...]:
        """A question with media, which is always a dialog: the run's system prompt and one user message."""
        system = (Message("system", self.system_prompt),) if self.system_prompt else ()
        return (*system, Message("user", parts))


@dataclass(frozen=True)
class Opaque:
    """A sample's value that only the task's own aggregation can read, such as a prediction with its reference."""

    value: Any


Value = float | tuple[float, float] | Opaque | None
"""None where a sample has no value of a metric, such as a prompt without a gold answer."""


class Task(ABC):
    """Subclass it, or one of the base classes in `mill.tasks`, and register it under a name."""

    name: str
    task_type: TaskType
    version: int | str = 1
    kind: str = ""
    """The kind of its requests, or of most of them."""
    modalities: frozenset[str] = frozenset({"text"})
    n_shots: int = 0
    takes_shots: bool = False
    """Whether questions can have examples before them, so that --n_shots means something."""
    takes_choice_options: bool = False
    """Whether its prompts list choices of which the model generates the letter, so that --cot, --shuffle_choices and
    --permutations mean something."""
    by_letter: str = ""
    """The name of its rendering by the generated letter, which a model without log-probabilities can run."""
    metrics: Mapping[str, str] = {}
    """Metric name -> how its sample values are aggregated (a registered metric)."""
    diagnostics: tuple[str, ...] = ()
    """Metrics that describe answers and do not score them: there is no pass@k, avg@k or maj@k of them."""
    open_metrics: bool = False
    """Whether `score` decides which metrics there are; `aggregate` then sums up those that `metrics` does not name."""
    own_prompts: bool = False
    """Whether texts go to the model as they are, also with a chat template: the task makes the messages itself."""
    runs_code: bool = False
    """Whether scoring runs code that the model wrote, which needs a sandbox and --confirm_run_unsafe_code."""
    isolates_code: bool = False
    """Whether that code runs in mill's sandbox alone: it then needs no confirmation, unless the user chose no sandbox."""
    judge: Judge | None = None
    """How another model grades the answers, where --judge names one."""
    by_category: bool = False
    """Whether results have the scores of each category beside those of the whole."""
    max_rounds: int = 100
    """Of a dialog; --max_rounds overrides it."""
    max_tool_output: int = 4000
    """Characters of a tool's output that the model gets; --max_tool_output overrides it."""
    tool_timeout_s: float = 30.0
    """How long a call of a tool may take."""
    alternatives: tuple[str, ...] = ()
    """Other renderings of the same data, tried in this order when a model cannot serve this one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kind = self.kind or DEFAULT_KIND[self.task_type]

    def configure(self, settings: RenderSettings) -> None:
        """Called once with the run's settings, before any other hook; also where a recorded run is scored again."""
        return

    @abstractmethod
    def samples(self) -> Sequence[Sample]:
        """All samples, in the order of the data."""

    def prepare(self, samples: Sequence[Sample], settings: RenderSettings) -> None:
        """Called once, before `requests`, with the samples that will run: for prompts that depend on each other."""
        return

    def aggregate(self, metric: str, values: Sequence[Any]) -> tuple[float, float | None] | None:
        """A metric over all samples with its standard error, where the task computes it itself.

        None leaves it to the registered metric that `metrics` names.
        """
        return None

    def limits(self, metric: str) -> tuple[float, float]:
        """The smallest and largest possible value of a metric that the task aggregates: its interval ends there."""
        return -math.inf, math.inf

    @property
    def kinds(self) -> frozenset[str]:
        """All kinds of requests that it sends."""
        return frozenset({self.kind})

    @abstractmethod
    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        """The requests of one sample."""

    def tools(self, sample: Sample) -> Sequence[Tool]:
        """The tools that the model may call in this sample; the rounds' requests name them too."""
        return ()

    def call_tool(self, sample: Sample, call: ToolCall, responses: Sequence[Response]) -> str:
        """Execute a call of one of the tools; the model gets what it raises as the result. Called from several threads.

        `responses` are those of the dialog so far. The last one has this call, and the results of its calls before this one:
        what a tool remembers follows from them, so that a resumed run has the same state.
        """
        raise NotImplementedError(f"the task {self.name} has tools and no call_tool()")

    def next_round(self, sample: Sample, settings: RenderSettings, responses: Sequence[Response]) -> Request | None:
        """The next round of a dialog, given the responses so far; None when it is over. Only for multi-round tasks."""
        return None

    def prepare_scoring(self, answered: Sequence[tuple[Sample, Sequence[Response]]]) -> None:
        """Called once before `score`, with what that will be called with: for scoring that is faster for all together."""
        return

    @abstractmethod
    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        """A value for each metric, from one response to each request (of a dialog: one to each round)."""

    def details(self, sample: Sample, responses: Sequence[Response]) -> Mapping[str, Any]:
        """Why responses have the values that `score` gave them, for people who read the samples; empty for most tasks."""
        return {}

    def extracted(self, sample: Sample, responses: Sequence[Response]) -> Any:
        """The answer extracted from the responses, in a form in which two models' answers are compared; None without one."""
        return None

    def extracts(self, sample: Sample) -> bool:
        """Whether an answer is extracted from the responses to this sample: where the task has `extracted`."""
        return type(self).extracted is not Task.extracted

    def category(self, sample: Sample) -> str:
        """The category by which results are broken down."""
        return ""

    def judged_fields(self, sample: Sample, responses: Sequence[Response]) -> dict[str, str]:
        """The fields of the judge's prompt: the question, the answer to judge, and the reference answer."""
        return {"question": "", "answer": responses[-1].text or "", "reference": str(self.target(sample))}

    def gold_verdict(self, sample: Sample, responses: Sequence[Response]) -> float | None:
        """The verdict that is known to be right, to measure the judge; None where it is not known."""
        return None

    def judge_requests(
        self, sample: Sample, responses: Sequence[Response], judgements: Sequence[str], *, chat: bool
    ) -> list[Request]:
        """The next requests to the judge, given its texts so far; empty when there are no more. `chat` is whether the judge
        has a chat template."""
        assert self.judge is not None
        return [] if judgements else self.judge.requests(self.judged_fields(sample, responses), chat=chat)

    def score_judged(
        self, sample: Sample, responses: Sequence[Response], judgements: Sequence[str | None]
    ) -> dict[str, Value]:
        """The values of a sample with those of its judgements; None is a request to the judge that failed."""
        assert self.judge is not None
        found = self.score(sample, responses)
        return {**found, **self.judge.values(judgements, self.gold_verdict(sample, responses))}

    def choice_texts(self, sample: Sample) -> Sequence[str]:
        """The choices whose log-probabilities are compared, in the order of the requests; empty for other tasks."""
        return ()

    def target(self, sample: Sample) -> Any:
        """The gold answer, for people who read the samples."""
        return None

    @property
    def executes_tools(self) -> bool:
        """Whether calls of its dialogs are executed."""
        return type(self).call_tool is not Task.call_tool

    @property
    def multi_round(self) -> bool:
        return self.kind == MULTI_ROUND

    def warnings(self) -> list[str]:
        """Deviations from the task's definition that affect the score, such as another split."""
        return []


TaskScores = Mapping[str, Mapping[str, tuple[float, float | None, int]]]
"""For each task its metrics: value, standard error, number of samples."""


@dataclass(frozen=True)
class Benchmark:
    """A named set of tasks or smaller benchmarks; the mean over them is by samples (`weighted`) or plain."""

    name: str
    tasks: tuple[str, ...]
    weighted: bool = True

    def aggregate(self, scores: TaskScores) -> Mapping[str, tuple[float, float | None]] | None:
        """The means over the tasks with their standard errors, where a benchmark computes them itself."""
        return None
