"""The runs below an output folder, as they are read for tables, comparisons and plots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from mill.api.errors import RunError
from mill.metrics.estimate import Estimate
from mill.models.prefix.paths import MIXED_ROWS
from mill.plan.sampling import is_random
from mill.store.folder import MANIFEST, RunFolder, find_runs
from mill.store.sample_row import SampleRow, iterate_rows, read_light
from mill.store.schema import BenchmarkResult, Results, TaskResult
from mill.support.terminal import warn

T = TypeVar("T")


@dataclass(frozen=True)
class RecordedRun:
    """A run's manifest and scores. `arguments` distinguish it from runs of other models with the same name."""

    folder: RunFolder
    manifest: Mapping[str, Any]
    results: Results
    arguments: str = ""

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def model(self) -> str:
        return str(self.manifest["model"]["name"])

    @property
    def label(self) -> str:
        """The model with the arguments that distinguish it."""
        return f"{self.model} ({self.arguments})" if self.arguments else self.model

    @property
    def settings(self) -> str:
        return self.path.name

    def result(self, name: str) -> TaskResult | BenchmarkResult | None:
        """The scores of a task, or of a benchmark where no task has the name."""
        return self.results.tasks.get(name) or self.results.benchmarks.get(name)

    def estimate(self, name: str, metric: str) -> Estimate | None:
        found = self.result(name)
        return found.metrics.get(metric) if found is not None else None

    def tasks_of(self, name: str) -> list[str]:
        """A task itself, or those of a benchmark."""
        found = self.result(name)
        return list(found.tasks) if isinstance(found, BenchmarkResult) else [name]

    def is_random_sample(self, name: str) -> bool:
        """Whether a random sample ran of a task, or of one of a benchmark's tasks."""
        found = (self.results.tasks.get(task) for task in self.tasks_of(name))
        return any(task is not None and task.sampled is not None and is_random(task.sampled) for task in found)

    def light_rows(self, task: str) -> list[SampleRow]:
        """The samples of a task without their texts; none, with a warning, where their file is damaged."""
        return _or_none(lambda: read_light(self.folder.samples_file(task), task))

    def gather(self, task: str, read: Callable[[SampleRow], T]) -> list[T]:
        """What `read` takes of each sample of a task; nothing, with a warning, where their file is damaged."""
        return _or_none(lambda: [read(row) for row in iterate_rows(self.folder.samples_file(task))])


def _or_none(read: Callable[[], list[T]]) -> list[T]:
    try:
        return read()
    except RunError as error:
        warn(f"left out: {error}")
        return []


def read_run(folder: RunFolder) -> RecordedRun:
    results = folder.results()
    if any(MIXED_ROWS in result.warnings for result in results.tasks.values()):
        warn(f"{folder.path}: {MIXED_ROWS}")
    return RecordedRun(folder, folder.manifest(), results)


def read_runs(path: Path) -> list[RecordedRun]:
    """The run at a path, or all runs below the folder of a model or of results. A damaged run is reported and left out."""
    if not path.is_dir():
        raise RunError(f"the output folder {path} does not exist")
    if (path / MANIFEST).exists():
        return [read_run(RunFolder(path))]
    found: list[RecordedRun] = []
    for folder in [*(RunFolder(file.parent, path) for file in sorted(path.glob(f"*/{MANIFEST}"))), *find_runs(path)]:
        try:
            found.append(read_run(folder))
        except RunError as error:
            warn(f"left out: {error}")
    arguments = distinguishing_arguments({str(run.path): run.manifest["model"] for run in found})
    return [replace(run, arguments=arguments[str(run.path)]) for run in found]


def distinguishing_arguments(models: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """For each run, the backend and arguments in which it differs from runs of another model with the same name.

    Models that differ in none of them, such as other weights in the same folder, have the name of their folder.
    """
    by_name: dict[str, dict[str, list[str]]] = {}  # model name -> model folder -> runs
    for run, model in models.items():
        by_name.setdefault(model["name"], {}).setdefault(Path(run).parent.name, []).append(run)
    texts = dict.fromkeys(models, "")
    for folders in by_name.values():
        if len(folders) < 2:
            continue
        described = [_described(models[runs[0]]) for runs in folders.values()]
        differing = _differing(described)
        labels = [", ".join(f"{name}={entry[name]}" for name in differing if name in entry) for entry in described]
        for (folder, runs), label in zip(folders.items(), labels, strict=True):
            clash = labels.count(label) > 1
            texts |= dict.fromkeys(runs, ", ".join(filter(None, (label, folder if clash else ""))))
    return texts


def _described(model: Mapping[str, Any]) -> dict[str, Any]:
    arguments = model.get("arguments")
    return {"backend": model.get("backend", ""), **(arguments if isinstance(arguments, dict) else {})}


def _differing(described: Sequence[Mapping[str, Any]]) -> list[str]:
    names = dict.fromkeys(name for arguments in described for name in arguments)
    return [name for name in names if any(arguments.get(name) != described[0].get(name) for arguments in described)]
