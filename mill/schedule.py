"""Many runs on a cluster: the matrix of models, tasks and shots, what of it is missing, and the jobs. Imported by `cli`.

The cells of a matrix are stored beside the results. They run as arrays on SLURM, through submitit and within the limits of
the cluster file.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from mill.api.errors import MillError, RunError, SpecError, UnknownName
from mill.runs.evaluate import Plan
from mill.store.folder import MANIFEST, RunFolder, find_runs, read_json, short_hash
from mill.store.schema import Manifest, TaskResult
from mill.support.files import make_folder, write_json
from mill.support.terminal import describe
from mill.support.validate import convert, read_yaml

FOLDER = "schedule"
CELLS = "cells"


@dataclass(frozen=True)
class Expected:
    """What a run must have of a task to be complete."""

    n: int
    version: int | str
    data_hash: str

    def missing(self, result: TaskResult | None) -> str | None:
        """What is missing in a result, as a message; None when it is complete."""
        if result is None or (result.version, result.data_hash) != (self.version, self.data_hash):
            return "no result"
        if result.n < self.n:
            return f"{result.n} of {self.n} samples"
        return f"{result.errors} samples failed" if result.errors else None


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
            results = RunFolder(folder).results().tasks
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


def remember_cells(output_dir: Path, cells: Iterable[Cell]) -> None:
    """Store cells with their last jobs. Each has its own file, so that concurrent commands do not interfere."""
    known = read_cells(output_dir)
    for cell in cells:
        earlier = known.get(cell.key)
        stored = cell if cell.job or earlier is None else replace(cell, job=earlier.job)
        if stored != earlier:
            write_json(_file(output_dir, cell), asdict(stored), root=output_dir, indent=2)


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
            manifest = convert(folder.manifest(), Manifest, folder.path / MANIFEST, RunError)
            results = folder.results().tasks
        except RunError as error:  # one damaged run does not hide the others
            missing.append((folder.path.parent.name, folder.path.name, str(error)))
            continue
        for task, entry in manifest.tasks.items():
            if what := Expected(entry.n, entry.version, entry.data_hash).missing(results.get(task)):
                missing.append((manifest.model.name, task, what))
    return missing


Count = Annotated[int, Meta(ge=1)]
SIGNAL_S = 90  # a job gets a signal this long before its time is over, and is queued again


@dataclass(frozen=True)
class Cluster:
    """What one job gets, and how many may run. The cluster's defaults apply to what is left out."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    minutes: Count = 240
    gpus: Annotated[int, Meta(ge=0)] = 0
    cpus: Count = 1
    memory_gb: Annotated[float, Meta(ge=0, le=1e9)] | None = None
    ranks: Count = 1
    """Processes of a job that share a cell's samples and the job's gpus."""
    at_once: Count = 16
    """Jobs of an array that may run at the same time."""
    array_size: Count = 1000
    """Most cells in one array (SLURM's MaxArraySize)."""
    setup: tuple[str, ...] = ()
    """Shell lines to run first, such as `module load cuda`."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Other options of sbatch, by their long names."""

    def parameters(self, name: str) -> dict[str, Any]:
        """The same as parameters of submitit."""
        optional = {
            "slurm_partition": self.partition,
            "slurm_account": self.account,
            "slurm_qos": self.qos,
            "mem_gb": self.memory_gb,
            "gpus_per_node": self.gpus or None,
            "slurm_setup": list(self.setup) or None,
            "slurm_additional_parameters": dict(self.extra) or None,
        }
        return {
            "name": name,
            "timeout_min": self.minutes,
            "cpus_per_task": self.cpus,
            "tasks_per_node": self.ranks,
            "slurm_array_parallelism": self.at_once,
            "slurm_signal_delay_s": min(SIGNAL_S, self.minutes * 15),
            **{key: value for key, value in optional.items() if value is not None},
        }


def read_cluster(path: str | None) -> Cluster:
    """The checked values of a file; the defaults without one."""
    if path is None:
        return Cluster()
    content = read_yaml(path, "cluster file") or {}
    known = [entry.name for entry in fields(Cluster)]
    for name in content:
        if name not in known:
            raise UnknownName(f"entry in {path}", str(name), known, hint=f"entries are {', '.join(known)}")
    return convert(content, Cluster, path, SpecError)


LOGS = "jobs"
SLURM_TIMEOUT_S = 30.0  # SLURM's commands take long when its controller is away


class CellFailed(Exception):
    """`mill eval` ended with a non-zero exit code; its output is in the job's log."""


class CellJob:
    """What a job runs: `run`, with a cell's command line. When its time is over it is queued again and resumes."""

    def __init__(self, run: Callable[[list[str]], int], ranks: int) -> None:
        self.run, self.ranks = run, ranks

    def __call__(self, argv: Sequence[str]) -> int:
        if self.ranks > 1:
            from submitit.helpers import TorchDistributedEnvironment

            TorchDistributedEnvironment().export(set_cuda_visible_devices=False)
        code = self.run(list(argv))
        if code != 0:
            raise CellFailed(f"mill {' '.join(argv)} ended with exit code {code}")
        return code

    def checkpoint(self, argv: Sequence[str]) -> Any:
        """Called by submitit before the time is over."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, argv)


def submit(
    cells: Sequence[Cell], cluster: Cluster, output_dir: Path, run: Callable[[list[str]], int]
) -> Iterator[list[Cell]]:
    """Submit cells as arrays and yield each array, with the names of its jobs, as soon as SLURM accepted it.

    An array starts when the one before it has ended, so that at most `at_once` jobs ever run. `run` executes a command line
    and returns its exit code.
    """
    executor, before = _executor(output_dir), ""
    for start in range(0, len(cells), cluster.array_size):
        part = cells[start : start + cluster.array_size]
        after = {"dependency": f"afterany:{before}"} if before else {}
        try:
            executor.update_parameters(**replace(cluster, extra={**cluster.extra, **after}).parameters("mill"))
            jobs = executor.map_array(CellJob(run, cluster.ranks), [list(cell.argv) for cell in part])
        except Exception as error:  # submitit raises what sbatch printed
            raise MillError(f"SLURM refused the jobs: {' '.join(str(error).split())[:300]}") from error
        before = str(jobs[0].job_id).partition("_")[0]
        yield [replace(cell, job=str(job.job_id)) for cell, job in zip(part, jobs, strict=True)]


def active_jobs(cells: Iterable[Cell]) -> set[str]:
    """The names of these cells' jobs that are queued or running on SLURM; squeue runs only if any has a job."""
    names = {cell.job for cell in cells if cell.job}
    if not names:
        return set()
    try:
        listed = subprocess.run(
            ["squeue", "--noheader", "--array", "--format=%i", f"--user={os.getuid()}"],
            capture_output=True,
            text=True,
            timeout=SLURM_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MillError(f"cannot list the jobs of SLURM: {describe(error)}") from error
    if listed.returncode != 0:
        raise MillError(f"squeue failed: {' '.join(listed.stderr.split())[:300]}")
    return names.intersection(listed.stdout.split())


def _executor(output_dir: Path) -> Any:
    import submitit

    make_folder(output_dir / FOLDER / LOGS, root=output_dir)
    try:
        # A job is queued again each time its time is over: it has completed more requests each time.
        return submitit.AutoExecutor(folder=output_dir / FOLDER / LOGS, cluster="slurm", slurm_max_num_timeout=10**6)
    except RuntimeError as error:  # submitit looks for srun
        raise MillError(f"no SLURM on this machine ({describe(error)}): `mill eval` runs models and tasks here") from error
