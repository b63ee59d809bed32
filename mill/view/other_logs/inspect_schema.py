"""The logs of inspect_ai (format version 2), as far as they are read."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

Scalar = str | int | float | bool | None


class InspectUsage(Struct):
    """Input tokens do not include those of the cache."""

    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_cache_write: int | None = None
    input_tokens_cache_read: int | None = None
    reasoning_tokens: int | None = None

    @property
    def prompt_tokens(self) -> int:
        return self.input_tokens + (self.input_tokens_cache_write or 0) + (self.input_tokens_cache_read or 0)


class InspectError(Struct):
    message: str


class InspectMetric(Struct):
    value: float | None = None


class InspectScores(Struct):
    """The metrics of a score; `name` differs from `scorer` where the scorer gives several scores."""

    name: str
    scorer: str = ""
    reducer: str | None = None
    scored_samples: int | None = None
    metrics: dict[str, InspectMetric] = {}


class InspectResults(Struct):
    total_samples: int = 0
    completed_samples: int = 0
    scores: list[InspectScores] = []


class InspectStats(Struct):
    started_at: str = ""
    completed_at: str = ""
    model_usage: dict[str, InspectUsage] = {}


class InspectDataset(Struct):
    name: str | None = None
    samples: int | None = None
    sample_ids: list[str | int] | None = None


class InspectConfig(Struct):
    limit: int | list[int] | None = None
    epochs: int | None = None
    epochs_reducer: list[str] | None = None


class InspectSpec(Struct):
    task: str
    model: str
    dataset: InspectDataset
    config: InspectConfig
    created: str = ""
    eval_id: str = ""
    task_version: int | str = 0
    task_args: dict[str, Any] = {}
    model_generate_config: dict[str, Any] = {}
    model_base_url: str | None = None
    model_args: dict[str, Any] = {}
    packages: dict[str, str] = {}


class InspectStep(Struct):
    solver: str


class InspectPlan(Struct):
    steps: list[InspectStep] = []
    config: dict[str, Any] = {}


class InspectHeader(Struct):
    """What a log has beside its samples. A log of a process that ended early has no results."""

    eval: InspectSpec
    version: int = 2
    status: str = "started"
    plan: InspectPlan = field(default_factory=InspectPlan)
    results: InspectResults | None = None
    stats: InspectStats = field(default_factory=InspectStats)
    error: InspectError | None = None


class InspectContent(Struct):
    """A part of a message."""

    type: str
    text: str | None = None
    reasoning: str | None = None
    summary: str | None = None
    redacted: bool = False
    image: str | None = None
    audio: str | None = None
    video: str | None = None
    filename: str | None = None
    name: str | None = None
    arguments: Any = None
    result: Any = None


class InspectCall(Struct):
    id: str
    function: str
    arguments: Any = None


class InspectCallError(Struct):
    type: str
    message: str = ""


class InspectMessage(Struct):
    role: str
    content: str | list[InspectContent] = ""
    id: str | None = None
    source: str | None = None
    tool_calls: list[InspectCall] | None = None
    tool_call_id: str | list[str] | None = None
    function: str | None = None
    error: InspectCallError | None = None


class InspectChoice(Struct):
    message: InspectMessage
    stop_reason: str = "unknown"


class InspectOutput(Struct):
    choices: list[InspectChoice] = []
    usage: InspectUsage | None = None
    time: float | None = None
    error: str | None = None


class InspectTool(Struct):
    name: str
    description: str = ""
    parameters: dict[str, Any] = {}


class InspectModelEvent(Struct):
    """A call of a model."""

    output: InspectOutput
    tools: list[InspectTool] = []
    retries: int | None = None


class InspectScore(Struct):
    value: Scalar | list[Scalar] | dict[str, Scalar]
    answer: str | None = None
    explanation: str | None = None
    reason: str | None = None
    metadata: dict[str, Any] | None = None


class InspectLimit(Struct):
    type: str
    limit: float | None = None


class InspectSample(Struct):
    """A sample in one epoch. Long texts are in `attachments`: `attachment://HASH` refers to them."""

    id: str | int
    input: str | list[InspectMessage]
    target: str | list[str] = ""
    epoch: int = 1
    choices: list[str] | None = None
    messages: list[InspectMessage] = []
    output: InspectOutput = field(default_factory=InspectOutput)
    scores: dict[str, InspectScore] | None = None
    metadata: dict[str, Any] | None = None
    events: list[Any] | None = None
    total_time: float | None = None
    uuid: str | None = None
    error: InspectError | None = None
    limit: InspectLimit | None = None
