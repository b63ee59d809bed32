"""A real SLURM for the tests of schedules."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import free_port

SCRIPT = Path(__file__).parents[1] / "slurm.sh"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue")


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A SLURM node with four cores; SLURM_CONF names its configuration."""
    daemons = f"{os.environ['PATH']}:/usr/sbin"  # not on the PATH of ordinary users
    missing = [program for program in PROGRAMS if shutil.which(program, path=daemons) is None]
    if missing:
        pytest.skip(f"SLURM is not installed: there is no {', '.join(missing)}")
    if os.getuid() != 0:
        pytest.skip("only root can start a SLURM")
    folder = tmp_path_factory.mktemp("slurm")
    variables = {"SLURM_CTLD_PORT": str(free_port()), "SLURM_D_PORT": str(free_port()), "PATH": daemons}
    try:
        subprocess.run([str(SCRIPT), "start", str(folder)], env={**os.environ, **variables}, check=True, timeout=90)
        os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
        yield
    finally:
        os.environ.pop("SLURM_CONF", None)
        subprocess.run([str(SCRIPT), "stop", str(folder)], check=False, timeout=90)
