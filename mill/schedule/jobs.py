"""Cells as jobs: arrays on SLURM, through submitit, or processes of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mill.api.batching import describe
from mill.api.errors import MillError
from mill.api.storage import make_folder, unique_name
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
    """Submit cells as arrays; each array comes back, with the names of its jobs, as soon as SLURM has it.

    An array starts when the one before it has ended, so that no more than `at_once` jobs are ever under way.
    """
    executor, before = _executor(output_dir), ""
    for start in range(0, len(cells), cluster.array_size):
        part = cells[start : start + cluster.array_size]
        after = {"dependency": f"afterany:{before}"} if before else {}
        try:
            executor.update_parameters(**replace(cluster, extra={**cluster.extra, **after}).parameters("mill"))
            jobs = executor.map_array(CellJob(cluster.ranks), [list(cell.argv) for cell in part])
        except Exception as error:  # submitit raises what sbatch printed
            raise MillError(f"SLURM did not take the jobs: {' '.join(str(error).split())[:300]}") from error
        before = str(jobs[0].job_id).partition("_")[0]
        yield [replace(cell, job=str(job.job_id)) for cell, job in zip(part, jobs, strict=True)]


def run_here(cells: Sequence[Cell], cluster: Cluster, output_dir: Path) -> Generator[tuple[Cell, str | None], None, None]:
    """Run cells as processes of this machine, a few at once; each comes back when it ended, with what went wrong."""
    waiting = list(cells)
    under_way: dict[str, tuple[Cell, subprocess.Popen[bytes], Path]] = {}
    try:
        while waiting or under_way:
            while waiting and len(under_way) < cluster.at_once:
                cell = waiting.pop(0)
                log = output_dir / FOLDER / LOGS / f"{unique_name()}-{cell.key}.log"
                make_folder(log.parent, root=output_dir)
                under_way[cell.key] = (cell, _start(cell, cluster, log), log)
            time.sleep(_POLL_S)
            for key, (cell, process, log) in list(under_way.items()):
                code = process.poll()
                if code is not None:
                    del under_way[key]
                    yield cell, f"ended with exit code {code}{_reason(log)}; its log: {log}" if code else None
    finally:
        for _, process, _ in under_way.values():
            process.terminate()  # as a scheduler does: what is answered is kept, and told
        for _, process, _ in under_way.values():
            try:
                process.wait(timeout=ASK_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _start(cell: Cell, cluster: Cluster, log: Path) -> subprocess.Popen[bytes]:
    ranks = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={cluster.ranks}"] if cluster.ranks > 1 else []
    command = [sys.executable, *ranks, "-m", "mill", *cell.argv]
    with log.open("xb") as told:  # in a group of its own: Ctrl-C ends the command, and the command its cells
        return subprocess.Popen(command, stdout=told, stderr=subprocess.STDOUT, start_new_session=True)


def jobs_under_way(cells: Iterable[Cell]) -> set[str]:
    """The names of these cells' jobs that SLURM has waiting or running; it is asked only where there are any."""
    names = {cell.job for cell in cells if cell.job}
    if not names:
        return set()
    try:
        asked = subprocess.run(
            ["squeue", "--noheader", "--array", "--format=%i", f"--user={os.getuid()}"],
            capture_output=True,
            text=True,
            timeout=ASK_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MillError(f"SLURM cannot be asked what is under way: {describe(error)}") from error
    if asked.returncode != 0:
        raise MillError(f"SLURM does not say what is under way: {' '.join(asked.stderr.split())[:300]}")
    return names.intersection(asked.stdout.split())


def _executor(output_dir: Path) -> Any:
    import submitit

    make_folder(output_dir / FOLDER / LOGS, root=output_dir)
    try:
        # A job goes back to the queue as often as its time is over: each time it has answered more.
        return submitit.AutoExecutor(folder=output_dir / FOLDER / LOGS, cluster="slurm", slurm_max_num_timeout=10**6)
    except RuntimeError as error:  # submitit looks for srun
        raise MillError(f"there is no SLURM here ({describe(error)}): --local runs the cells on this machine") from error


def _reason(log: Path) -> str:
    """The line in which mill said why it ended, where it did."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.startswith("mill")]
    return f" ({lines[-1][:300]})" if lines else ""
