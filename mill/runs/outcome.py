"""The outcome of a run, or of scoring it again."""

from __future__ import annotations

from dataclasses import dataclass, field

from mill.execute.executor import Tally
from mill.runs.folder import RunFolder
from mill.runs.samples import RunSample
from mill.runs.schema import BenchmarkResult, TaskResult


@dataclass
class Outcome:
    """The results of a run. `tasks` and `benchmarks` are those of this command, not all that the folder has."""

    model: str
    folder: RunFolder
    tasks: list[TaskResult]
    benchmarks: list[BenchmarkResult]
    tally: Tally
    seconds: float
    warnings: list[str] = field(default_factory=list)
    scored: dict[str, list[RunSample]] = field(default_factory=dict, repr=False)
    """The samples of each task, by the task's name."""
    judge_failures: int = 0
    """Requests to the judge that failed, and judgements that could not be read."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Tasks that could not be scored again, with the reason."""
    stopped: str = ""
    """At which budget the run stopped, and how many samples are done; empty where it came to its end."""
    spent: str = ""
    """What the whole run has spent, where it has a budget."""
    precision: dict[str, str] = field(default_factory=dict)
    """How precise each task or benchmark is, and with how many samples, where a precision was given."""

    @property
    def errors(self) -> int:
        return sum(task.errors for task in self.tasks)

    @property
    def without_score(self) -> list[str]:
        """Tasks of which samples ran, and none has a value of any metric."""
        return [task.task for task in self.tasks if task.n and not any(estimate.n for estimate in task.metrics.values())]

    @property
    def complete(self) -> bool:
        """Whether every task has a score, no sample failed or was left, and no judgement is missing."""
        return not (self.stopped or self.errors or self.judge_failures or self.without_score or self.left_out)
