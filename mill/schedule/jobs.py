"""Cells as jobs, through submitit: arrays on SLURM, or processes of this machine."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mill.api.batching import describe
from mill.api.errors import MillError
from mill.schedule.cells import FOLDER, Cell
from mill.schedule.cluster import Cluster

LOGS = "jobs"
ASK_S = 30.0  # SLURM's commands take long when its controller is away
_POLL_S = 0.2


class CellFailed(Exception):
    """`mill eval` ended with a non-zero exit code; its output stands in the job's log."""


class CellJob:
    """What a job runs. When its time is over it is queued again, and goes on where it stopped."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks

    def __call__(self, argv: Sequence[str]) -> int:
        from mill.cli.main import run

        if self.ranks > 1:
            from submitit.helpers import TorchDistributedEnvironment

            TorchDistributedEnvironment().export(set_cuda_visible_devices=False)
        code = run(list(argv))
        if code != 0:
            raise CellFailed(f"mill {' '.join(argv)} ended with exit code {code}")
        return code

    def checkpoint(self, argv: Sequence[str]) -> Any:
        """Called by submitit before the time is over."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, argv)


def submit(cells: Sequence[Cell], cluster: Cluster, output_dir: Path) -> Iterator[list[Cell]]:
    """Submit cells as arrays; each array comes back, with the names of its jobs, as soon as SLURM has it."""
    executor = _executor(output_dir, "slurm", cluster)
    for start in range(0, len(cells), cluster.array_size):
        part = cells[start : start + cluster.array_size]
        try:
            jobs = executor.map_array(CellJob(cluster.ranks), [list(cell.argv) for cell in part])
        except Exception as error:  # submitit raises what sbatch printed
            raise MillError(f"SLURM did not take the jobs: {' '.join(str(error).split())[:300]}") from error
        yield [replace(cell, job=str(job.job_id)) for cell, job in zip(part, jobs, strict=True)]


def run_here(cells: Sequence[Cell], cluster: Cluster, output_dir: Path) -> Iterator[tuple[Cell, str | None]]:
    """Run cells as processes of this machine, a few at once; each comes back when it ended, with what went wrong."""
    executor = _executor(output_dir, "local", cluster)
    waiting = list(cells)
    under_way: dict[str, tuple[Cell, Any]] = {}
    try:
        while waiting or under_way:
            while waiting and len(under_way) < cluster.at_once:
                cell = waiting.pop(0)
                under_way[cell.key] = (cell, executor.submit(CellJob(cluster.ranks), list(cell.argv)))
            time.sleep(_POLL_S)
            for key, (cell, job) in list(under_way.items()):
                if job.done():
                    del under_way[key]
                    error = job.exception()
                    log = f"; its log: {job.paths.stderr}"
                    yield replace(cell, job=str(job.job_id)), None if error is None else _last_line(error) + log
    finally:
        for _, job in under_way.values():
            job.cancel()


def jobs_under_way() -> set[str]:
    """The names of this person's jobs that SLURM has waiting or running; none where there is no SLURM."""
    try:
        asked = subprocess.run(
            ["squeue", "--noheader", "--array", "--format=%i", f"--user={os.getuid()}"],
            capture_output=True,
            text=True,
            timeout=ASK_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return set()
    return set(asked.stdout.split())


def _executor(output_dir: Path, cluster: str, limits: Cluster) -> Any:
    import submitit

    try:
        executor = submitit.AutoExecutor(folder=output_dir / FOLDER / LOGS, cluster=cluster)
        executor.update_parameters(**_parameters(limits, cluster))
    except RuntimeError as error:  # submitit looks for srun
        raise MillError(f"there is no SLURM here ({describe(error)}): --local runs the cells on this machine") from error
    return executor


def _parameters(limits: Cluster, cluster: str) -> dict[str, Any]:
    asked = limits.parameters("mill")
    return asked if cluster == "slurm" else {name: value for name, value in asked.items() if not name.startswith("slurm_")}


def _last_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
