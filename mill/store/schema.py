"""The types of a run's files. All that is read back is checked against them; fields that they do not have, such as those of
a newer version, are ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta

from mill.api.budget import TokenUsage
from mill.api.engine import Engine
from mill.api.errors import RunError
from mill.api.model import ComputeDevice
from mill.execute.executor import Tally
from mill.metrics.estimate import Estimate
from mill.support.files import encode_float

_LARGEST = 1e300  # neither infinity nor so near to it that sums and differences are infinite
Finite = Annotated[float, Meta(ge=-_LARGEST, le=_LARGEST)]
Count = Annotated[int, Meta(ge=0)]


@dataclass
class ModelEntry:
    name: str
    backend: str = ""


@dataclass
class SampledData:
    """Which samples of a task ran, where not all did: the first rows, named ones, a stratified random sample, or samples in
    a random order until a claim was decided."""

    method: Literal["first", "named", "random", "sequential"]
    seed: int = 0
    strata: dict[str, Count] = field(default_factory=dict)
    """The number of samples in the data of each category."""


@dataclass
class Look:
    """The state of a sequential test after a block of samples: the mean so far and its confidence sequence."""

    n: Annotated[int, Meta(ge=1)]
    value: Finite | Literal["NaN"]
    low: Finite
    high: Finite


@dataclass
class Decision:
    """A claim about the mean over a whole test set, tested in a random order of its samples until it was decided."""

    of: str
    """The task or benchmark."""
    metric: str
    compare: Annotated[str, Meta(pattern="^(>|>=|<|<=)$")]
    bound: Finite
    alpha: Annotated[float, Meta(gt=0, le=0.5)]
    outcome: Literal["true", "false", "undecided"]
    n: Count
    total: Annotated[int, Meta(ge=1)]
    failed: Count = 0
    """Samples that failed: the outcome is the same for any scores of theirs."""
    reached: Finite | None = None
    """What the metric is at least, or at most, on the side of the bound that was decided."""
    looks: list[Look] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Refuse what no test gives, such as an edited file."""
        decided = self.outcome != "undecided"
        if (decided and not self.looks) or any(one.n >= later.n for one, later in pairwise(self.looks)):
            raise ValueError(f"the looks contradict the decision {self.claim}")

    @property
    def claim(self) -> str:
        return f"{self.metric}{self.compare}{self.bound:g}"

    @property
    def name(self) -> str:
        """Which decision it is among those of a run."""
        return f"{self.of} {self.metric} {self.compare} {self.bound}"


@dataclass
class TaskEntry:
    """A task in the manifest."""

    version: int | str
    n: int
    total: int
    data_hash: str
    requested: str = ""
    task_type: str = ""
    n_shots: int = 0
    warnings: list[str] = field(default_factory=list)
    sampled: SampledData | None = None


@dataclass
class SessionEntry(Tally):
    scored: int = -1
    """-1 where an older version did not count them."""
    id: str = ""
    order: int = 0
    started: str = "-"
    ended: str = "-"
    seconds: float = 0.0
    paths: dict[str, str] = field(default_factory=dict)
    timing: dict[str, float] = field(default_factory=dict)
    """Seconds by phase."""
    device: ComputeDevice | None = None


@dataclass
class Manifest:
    """manifest.json."""

    model: ModelEntry
    settings: dict[str, Any]
    tasks: dict[str, TaskEntry]
    sessions: list[SessionEntry]
    fresh: bool = False
    condition: str = ""
    judge: str = ""
    engines: dict[str, Engine] = field(default_factory=dict)
    id: str = ""
    """The same after the run was extended or its folder moved."""


class FailedSample(TypedDict):
    """A sample without a score."""

    id: str | int
    error: str


@dataclass
class Flagged:
    """How many samples of a task have a flag, and the first of them."""

    n: Count
    samples: list[str | int] = field(default_factory=list)

    def add(self, sample: str | int) -> None:
        self.n += 1
        if len(self.samples) < MOST_FLAGGED:
            self.samples.append(sample)


MOST_FLAGGED = 20


@dataclass
class TaskResult:
    """A task's scores in results.json. `n` of `total` samples ran and `errors` of them have no value; each metric's own n
    says how many do."""

    task: str
    task_type: str
    version: int | str
    n_shots: int
    n: int
    total: int
    errors: int
    metrics: dict[str, Estimate]
    warnings: list[str] = field(default_factory=list)
    failures: list[FailedSample] = field(default_factory=list)
    data_hash: str = ""
    flags: dict[str, Flagged] = field(default_factory=dict)
    """What people should know about some samples beside their score, by the names of `mill.store.sample_row.FLAGS`."""
    categories: dict[str, dict[str, Estimate]] = field(default_factory=dict)
    """The metrics of each category, of tasks that report them."""
    unjudged: dict[str, int] = field(default_factory=dict)
    """Metric of the judge -> samples that lack a value of it, because their judgement failed or could not be read."""
    pending: int = 0
    """Samples that were not run, because the run stopped at its budget; they are not among the `n`."""
    not_judged: int = 0
    """Samples that were answered and not judged, because the run stopped at its budget."""
    sampled: SampledData | None = None
    """Which samples ran, where not all did."""

    @property
    def failed(self) -> int:
        """Samples that have no score, or lack one because their judgement failed."""
        return self.errors + max(self.unjudged.values(), default=0)

    def to_dict(self) -> dict[str, Any]:
        encoded = {**asdict(self), "metrics": _encoded(self.metrics)}
        encoded["categories"] = {name: _encoded(metrics) for name, metrics in self.categories.items()}
        return _without_empty(encoded, *_OPTIONAL)


@dataclass
class BenchmarkResult:
    """A benchmark in results.json: the mean of its tasks for every metric that all of them have. Tasks without a single
    value are `missing`: the mean is over the others."""

    benchmark: str
    tasks: list[str]
    n: int
    total: int
    errors: int
    metrics: dict[str, Estimate]
    missing: list[str] = field(default_factory=list)
    unjudged: dict[str, int] = field(default_factory=dict)
    """The sums of its tasks."""

    def to_dict(self) -> dict[str, Any]:
        return _without_empty({**asdict(self), "metrics": _encoded(self.metrics)}, *_OPTIONAL)


def main_metric(metrics: Mapping[str, Estimate]) -> str:
    """The one that stands for the others: the judge's score where there is one, else the first; empty without any."""
    return "judge" if "judge" in metrics else next(iter(metrics), "")


def failed_samples(result: TaskResult | BenchmarkResult, metric: str) -> int:
    """How many samples lack a value of a metric because of a failure."""
    return result.errors + result.unjudged.get(metric, 0)


_OPTIONAL = (
    "categories", "unjudged", "flags", "pending", "not_judged", "sampled",
)  # fmt: skip


def _without_empty(encoded: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in encoded.items() if value or name not in names}


def _encoded(metrics: Mapping[str, Estimate]) -> dict[str, dict[str, Any]]:
    return {
        metric: {
            name: encode_float(value) if isinstance(value, float) else value for name, value in asdict(estimate).items()
        }
        for metric, estimate in metrics.items()
    }


def decode_floats(entry: Any) -> Any:
    """A result as `to_dict` or an earlier version wrote it; its NaN and infinity, which JSON does not have, as floats."""
    if not isinstance(entry, Mapping):
        return entry
    decoded = dict(entry)
    if "flags" not in entry:
        decoded["flags"] = _earlier_flags(entry)
    if "metrics" in entry:
        decoded["metrics"] = _decoded(entry["metrics"])
    if isinstance(entry.get("categories"), Mapping):
        decoded["categories"] = {name: _decoded(metrics) for name, metrics in entry["categories"].items()}
    return decoded


def earlier_decisions(sections: Mapping[str, Any]) -> dict[str, Any]:
    """The decisions of a version that stored them in the results of tasks and benchmarks, each by a name."""
    parts = [sections.get(name) for name in ("tasks", "benchmarks")]
    results = [entry for part in parts if isinstance(part, Mapping) for entry in part.values() if isinstance(entry, Mapping)]
    others = [one for entry in results if isinstance(several := entry.get("other_decisions"), list) for one in several]
    stored = [one for one in (*(entry.get("decision") for entry in results), *others) if isinstance(one, Mapping)]
    return {" ".join(str(one.get(part)) for part in ("of", "metric", "compare", "bound")): one for one in stored}


_EARLIER_FLAGS = {
    "truncated": "truncated_prompt",
    "cut_short": "token_limit",
    "truncated_reasoning": "truncated_reasoning",
    "max_rounds_reached": "max_rounds_reached",
    "empty": "empty",
    "filtered": "filtered",
}


def _earlier_flags(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a version that counted each in a field of its own, some with the samples."""
    found = {}
    for field_name, flag in _EARLIER_FLAGS.items():
        value = entry.get(field_name)
        if isinstance(value, list) and value:
            found[flag] = {"n": len(value), "samples": value[:MOST_FLAGGED]}
        elif isinstance(value, int) and value > 0:
            found[flag] = {"n": value}
    return found


def _decoded(metrics: Any) -> Any:
    if not isinstance(metrics, Mapping):
        return metrics
    return {
        metric: {name: float(value) if value in _FLOATS else value for name, value in estimate.items()}
        if isinstance(estimate, Mapping)
        else estimate
        for metric, estimate in metrics.items()
    }


_FLOATS = ("NaN", "Infinity", "-Infinity")


@dataclass
class Results:
    """results.json."""

    tasks: dict[str, TaskResult] = field(default_factory=dict)
    benchmarks: dict[str, BenchmarkResult] = field(default_factory=dict)
    decisions: dict[str, Decision] = field(default_factory=dict)
    """About claims, each by a name."""


@dataclass
class View:
    """The sections of manifest.json and results.json, with entries of any kind."""

    tasks: dict[str, Any] = field(default_factory=dict)
    benchmarks: dict[str, Any] = field(default_factory=dict)
    decisions: dict[str, Any] = field(default_factory=dict)
    sessions: list[dict[str, Any]] = field(default_factory=list)
    fresh: bool = False


@dataclass(frozen=True)
class Entry:
    """An entry of manifest.json or results.json that a session publishes under a name. Of several the newest wins: newest by
    its number, not by a clock; of equal numbers the one of more weight. A value of None removes the entry."""

    value: Any
    weight: int = 0
    number: int = 0
    writer: str = ""
    """The session, where entries are merged."""

    @property
    def rank(self) -> tuple[int, int, str]:
        return self.number, self.weight, self.writer


@dataclass
class SessionState:
    """sessions/*.json: what a process tells of its work on a run."""

    host: str
    machine: str
    pid: int
    tasks: list[str]
    born: str | None = None
    """When its process started."""
    working: bool = False
    """False while it waits for other sessions on its tasks."""
    ended: bool = False
    beat: Count = 0
    """How often the file was written."""
    started: Annotated[float, Meta(ge=0, le=1e11)] = 0.0
    seconds: Annotated[float, Meta(ge=0, le=1e10)] = 0.0
    spent: dict[str, TokenUsage] = field(default_factory=dict)
    """By account."""
    published: dict[str, dict[str, dict[str, Entry]]] = field(default_factory=dict)
    """File -> section -> name -> entry."""


def refuse_misnamed(entries: Mapping[str, Any], where: object) -> None:
    """Refuse results under another name than their own: they would count twice."""
    for name, entry in entries.items():
        field_name = {TaskResult: "task", BenchmarkResult: "benchmark"}.get(type(entry))
        if field_name is not None and (own := getattr(entry, field_name)) != name:
            raise RunError(f"{where} is not valid: {name}.{field_name}: it is {own!r}, which is another one")
