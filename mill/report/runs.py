"""An evaluation run in a report: its scores, warnings and failures, and some of its samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mill.report.about import About, manifest_about
from mill.report.run_samples import MAX_IN_RUN, MAX_SAMPLES, TaskSamples, read_task_samples
from mill.report.scores import result_warnings
from mill.report.tables import number
from mill.runs.folder import RESULTS, RunFolder
from mill.runs.schema import BenchmarkResult, Decision, Results, TaskResult, main_metric

FEWEST = 5  # samples of each task, also of runs with many tasks
MAIN_SCORES = 4  # in the index


@dataclass(frozen=True)
class RunSection:
    """A run as it is read for a report."""

    path: Path
    manifest: Mapping[str, Any]
    results: Results
    samples: dict[str, TaskSamples] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.manifest['model']['name']} on {', '.join(self.manifest['tasks'])}"

    @property
    def when(self) -> str:
        """The start of the last session."""
        return max((str(session.get("started", "")) for session in self.manifest["sessions"]), default="")

    @property
    def about(self) -> About:
        return manifest_about(self.manifest)

    @property
    def computed_by(self) -> list[str]:
        """Which paths of the model gave the answers, in the last session that computed some, and how they were verified."""
        computed = [session for session in self.manifest["sessions"] if session.get("paths")]
        return [f"{stage}: {path}" for session in computed[-1:] for stage, path in session["paths"].items()]

    @property
    def tasks(self) -> list[TaskResult]:
        return list(self.results.tasks.values())

    @property
    def benchmarks(self) -> list[BenchmarkResult]:
        return list(self.results.benchmarks.values())

    @property
    def decisions(self) -> list[Decision]:
        return list(self.results.decisions.values())

    @property
    def unfinished(self) -> str:
        """Why there are no scores, or not those of all tasks; empty for a finished run."""
        missing = [name for name in self.manifest["tasks"] if name not in self.results.tasks]
        if not missing:
            return ""
        ended = [str(session.get("ended", "")) for session in self.manifest["sessions"]][-1:]
        how = f" The last session {_ENDED.get(ended[0], 'did not end')}." if ended else " No session has ended yet."
        what = f"it has no {RESULTS}" if not self.results.tasks else f"{', '.join(missing)} {_have(missing)} no score"
        return f"This run was not finished: {what}.{how} The same command resumes it."

    @property
    def main_scores(self) -> str:
        """The main metric of each benchmark, or of each task that belongs to none."""
        inside = {task for mean in self.benchmarks for task in mean.tasks}
        alone = [task for task in self.tasks if task.task not in inside]
        named = [(mean.benchmark, mean.metrics) for mean in self.benchmarks] + [(task.task, task.metrics) for task in alone]
        scores = [
            f"{name} {metric} {number(found[metric].value, 3)}" for name, found in named if (metric := main_metric(found))
        ]
        more = f" and {len(scores) - MAIN_SCORES} more" if len(scores) > MAIN_SCORES else ""
        return ", ".join(scores[:MAIN_SCORES]) + more or "not finished"

    @property
    def warnings(self) -> list[str]:
        """Those of the results, and each error with its count; the samples have all errors, the results the first ones."""
        counted = any(found.total for found in self.samples.values())
        failures = [line for task, found in self.samples.items() for line in found.failure_lines(task)]
        return [*result_warnings(self.tasks, self.benchmarks, self.decisions, failures=not counted), *failures]

    def to_dict(self) -> dict[str, Any]:
        return {
            "run": str(self.path),
            "finished": not self.unfinished,
            "model": self.manifest["model"],
            "settings": self.manifest["settings"],
            "sessions": self.manifest["sessions"],
            "tasks": {name: result.to_dict() for name, result in self.results.tasks.items()},
            "benchmarks": {name: result.to_dict() for name, result in self.results.benchmarks.items()},
            **({"decisions": {one.name: asdict(one) for one in self.decisions}} if self.decisions else {}),
            "samples": {name: found.to_dict() for name, found in self.samples.items()},
        }


_ENDED = {"interrupted": "was interrupted", "failed": "failed", "finished": "finished", "stopped": "stopped at its budget"}


def _have(names: list[str]) -> str:
    return "has" if len(names) == 1 else "have"


def read_run(folder: RunFolder) -> RunSection:
    """Refuses a run whose files are not valid; a run without results is unfinished."""
    manifest, results = folder.manifest(), folder.results()
    names = list(manifest["tasks"])
    most = max(FEWEST, min(MAX_SAMPLES, MAX_IN_RUN // max(1, len(names))))
    samples = {name: read_task_samples(folder.samples_file(name), most) for name in names}
    return RunSection(folder.path, manifest, results, samples)
