"""The cells of a matrix of models, tasks and shots, and the files that store them beside the results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mill.api.errors import RunError
from mill.runs.evaluate import Plan
from mill.store.folder import MANIFEST, RESULTS, RunFolder, find_runs, read_json, short_hash
from mill.store.schema import Manifest
from mill.support.files import refuse_links, write_json
from mill.support.validate import convert

FOLDER = "schedule"
CELLS = "cells"


@dataclass(frozen=True)
class Expected:
    """What a run must have of a task to be complete."""

    n: int
    version: int | str
    data_hash: str

    def missing(self, result: Mapping[str, Any] | None) -> str | None:
        """What is missing in a result, as a message; None when it is complete."""
        if not result or (result["version"], result["data_hash"]) != (self.version, self.data_hash):
            return "no result"
        if result["n"] < self.n:
            return f"{result['n']} of {self.n} samples"
        return f"{result['errors']} samples failed" if result["errors"] else None


@dataclass(frozen=True)
class Counts:
    """The fields of a result that show whether it is complete."""

    n: int
    version: int | str
    data_hash: str
    errors: int


@dataclass(frozen=True)
class Cell:
    """One command: a model, a task or benchmark, and a number of shots. `run` is its folder below the output folder."""

    model: str
    task: str
    n_shots: int | None
    argv: tuple[str, ...]
    run: str
    expected: Mapping[str, Expected] = field(default_factory=dict)
    job: str = ""
    """The id of the last submitted job."""

    @property
    def key(self) -> str:
        """Stable: submitting a cell again gives the same key."""
        return short_hash({"argv": self.argv})

    @property
    def shots(self) -> str:
        return "-" if self.n_shots is None else str(self.n_shots)

    def missing(self, output_dir: Path) -> list[str]:
        """What is missing, one line per task."""
        folder = output_dir / self.run
        try:
            inside = folder.resolve().is_relative_to(output_dir.resolve())
        except (OSError, ValueError, RuntimeError):  # not a valid path
            inside = False
        if not inside:
            raise RunError(f"{_file(output_dir, self)} names the run {self.run!r}, which is outside of {output_dir}")
        try:
            results = _results(RunFolder(folder))
        except RunError as error:  # one damaged run does not hide the others
            return [f"{task}: {error}" for task in self.expected]
        missing = {task: expected.missing(results.get(task)) for task, expected in self.expected.items()}
        return [f"{task}: {what}" for task, what in missing.items() if what]


def cell_of(plan: Plan, model: str, task: str, n_shots: int | None, argv: Sequence[str], output_dir: Path) -> Cell:
    """A cell from its planned run, which passed all checks."""
    expected = {one.task.name: Expected(len(one.states), one.task.version, one.data_hash) for one in plan.tasks}
    path = plan.folder.path.resolve().relative_to(output_dir.resolve())
    return Cell(model, task, n_shots, tuple(argv), str(path), expected)


def read_cells(output_dir: Path) -> dict[str, Cell]:
    """Every cell that was ever scheduled into this folder, by key."""
    files = (output_dir / FOLDER / CELLS).glob("*.json")
    cells = [convert(read_json(file), Cell, file, RunError) for file in files]
    cells.sort(key=lambda cell: (cell.model, cell.task, cell.n_shots or 0, cell.argv))
    return {cell.key: cell for cell in cells}


def _results(folder: RunFolder) -> Mapping[str, Mapping[str, Any]]:
    results: dict[str, dict[str, Any]] = folder.read(RESULTS).get("tasks", {})
    convert(results, dict[str, Counts], f"tasks in {folder.path / RESULTS}", RunError)
    return results


def remember_cells(output_dir: Path, cells: Iterable[Cell]) -> None:
    """Store cells with their last jobs. Each has its own file, so that concurrent commands do not interfere."""
    known = read_cells(output_dir)
    for cell in cells:
        earlier = known.get(cell.key)
        stored = cell if cell.job or earlier is None else replace(cell, job=earlier.job)
        if stored != earlier:
            write_json(_file(output_dir, cell), asdict(stored), root=output_dir, indent=2)


def forget_cells(output_dir: Path, models: Sequence[str], tasks: Sequence[str], shots: Sequence[int | None]) -> int:
    """Remove cells by model, task and shots as they were scheduled; returns their number. No `shots` means all."""
    matching = [
        cell
        for cell in read_cells(output_dir).values()
        if cell.model in models and cell.task in tasks and (not shots or cell.n_shots in shots)
    ]
    refuse_links(output_dir / FOLDER / CELLS, output_dir)
    for cell in matching:
        _file(output_dir, cell).unlink(missing_ok=True)
    return len(matching)


def _file(output_dir: Path, cell: Cell) -> Path:
    return output_dir / FOLDER / CELLS / f"{cell.key}.json"


def unscheduled(output_dir: Path) -> list[tuple[str, str, str]]:
    """(model, task, what is missing) of runs that no cell schedules."""
    scheduled = {cell.run for cell in read_cells(output_dir).values()}
    missing = []
    for folder in find_runs(output_dir):
        if str(folder.path.relative_to(output_dir)) in scheduled:
            continue
        try:
            missing += _missing_tasks(folder)
        except RunError as error:  # one damaged run does not hide the others
            missing.append((folder.path.parent.name, folder.path.name, str(error)))
    return missing


def _missing_tasks(folder: RunFolder) -> list[tuple[str, str, str]]:
    manifest, results = convert(folder.manifest(), Manifest, folder.path / MANIFEST, RunError), _results(folder)
    missing = []
    for task, entry in manifest.tasks.items():
        what = Expected(entry.n, entry.version, entry.data_hash).missing(results.get(task))
        if what:
            missing.append((manifest.model.name, task, what))
    return missing
