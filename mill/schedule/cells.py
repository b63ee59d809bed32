"""The cells of a matrix of models, tasks and shots, and the files beside the results that remember them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from mill.api.errors import RunError
from mill.api.storage import refuse_links, write_json
from mill.api.validate import convert
from mill.runs.evaluate import Run
from mill.runs.folder import MANIFEST, RESULTS, RunFolder, find_runs, read_json, short_hash
from mill.runs.schema import Manifest

FOLDER = "schedule"
CELLS = "cells"


@dataclass(frozen=True)
class Expected:
    """How much of a task a run must have to be done."""

    n: int
    version: int
    data_hash: str

    def missing(self, result: Mapping[str, Any] | None) -> str | None:
        """What a result lacks, in words; None when it lacks nothing."""
        if not result or (result["version"], result["data_hash"]) != (self.version, self.data_hash):
            return "no result"
        if result["n"] < self.n:
            return f"{result['n']} of {self.n} samples"
        return f"{result['errors']} samples failed" if result["errors"] else None


@dataclass(frozen=True)
class Counts:
    """What of a result says whether it is whole."""

    n: int
    version: int
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
    """The cluster's name for the last job that was submitted."""

    @property
    def key(self) -> str:
        """The same cell whenever and however often it is submitted."""
        return short_hash({"argv": self.argv})

    @property
    def shots(self) -> str:
        return "-" if self.n_shots is None else str(self.n_shots)

    def missing(self, output_dir: Path) -> list[str]:
        """What is not there yet, a line for each task."""
        folder = output_dir / self.run
        try:
            inside = folder.resolve().is_relative_to(output_dir.resolve())
        except (OSError, ValueError, RuntimeError):  # no name of a file at all
            inside = False
        if not inside:
            raise RunError(f"{_file(output_dir, self)} names the run {self.run!r}, which is outside of {output_dir}")
        try:
            results = _results(RunFolder(folder))
        except RunError as error:  # one damaged run does not hide the others
            return [f"{task}: {error}" for task in self.expected]
        found = [(task, expected.missing(results.get(task))) for task, expected in self.expected.items()]
        return [f"{task}: {what}" for task, what in found if what]


def cell_of(run: Run, model: str, task: str, n_shots: int | None, argv: Sequence[str], output_dir: Path) -> Cell:
    """A cell from its planned run: everything that could be refused has been."""
    expected = {plan.task.name: Expected(len(plan.jobs), plan.task.version, plan.data_hash) for plan in run.plans}
    place = run.folder.path.resolve().relative_to(output_dir.resolve())
    return Cell(model, task, n_shots, tuple(argv), str(place), expected)


def read_cells(output_dir: Path) -> dict[str, Cell]:
    """Every cell that was ever scheduled into this folder, by key."""
    files = (output_dir / FOLDER / CELLS).glob("*.json")
    found = [convert(read_json(file), Cell, file, RunError) for file in files]
    found.sort(key=lambda cell: (cell.model, cell.task, cell.n_shots or 0, cell.argv))
    return {cell.key: cell for cell in found}


def _results(folder: RunFolder) -> Mapping[str, Mapping[str, Any]]:
    found: dict[str, dict[str, Any]] = folder.read(RESULTS).get("tasks", {})
    convert(found, dict[str, Counts], f"tasks in {folder.path / RESULTS}", RunError)
    return found


def remember_cells(output_dir: Path, cells: Iterable[Cell]) -> None:
    """Keep cells, each in a file of its own so that commands do not disturb each other, with its last job."""
    known = read_cells(output_dir)
    for cell in cells:
        earlier = known.get(cell.key)
        kept = cell if cell.job or earlier is None else replace(cell, job=earlier.job)
        if kept != earlier:
            write_json(_file(output_dir, cell), asdict(kept), root=output_dir, indent=2)


def forget_cells(output_dir: Path, models: Sequence[str], tasks: Sequence[str], shots: Sequence[int | None]) -> int:
    """Remove cells, by what they were scheduled as; how many there were. No `shots` means all."""
    found = [
        cell
        for cell in read_cells(output_dir).values()
        if cell.model in models and cell.task in tasks and (not shots or cell.n_shots in shots)
    ]
    refuse_links(output_dir / FOLDER / CELLS, output_dir)
    for cell in found:
        _file(output_dir, cell).unlink(missing_ok=True)
    return len(found)


def _file(output_dir: Path, cell: Cell) -> Path:
    return output_dir / FOLDER / CELLS / f"{cell.key}.json"


def unscheduled(output_dir: Path) -> list[tuple[str, str, str]]:
    """(model, task, what is missing) of runs that were started by hand."""
    scheduled = {cell.run for cell in read_cells(output_dir).values()}
    found = []
    for folder in find_runs(output_dir):
        if str(folder.path.relative_to(output_dir)) in scheduled:
            continue
        try:
            found += _lacking(folder)
        except RunError as error:  # one damaged run does not hide the others
            found.append((folder.path.parent.name, folder.path.name, str(error)))
    return found


def _lacking(folder: RunFolder) -> list[tuple[str, str, str]]:
    known, results = convert(folder.manifest(), Manifest, folder.path / MANIFEST, RunError), _results(folder)
    found = []
    for task, entry in known.tasks.items():
        what = Expected(entry.n, entry.version, entry.data_hash).missing(results.get(task))
        if what:
            found.append((known.model.name, task, what))
    return found
