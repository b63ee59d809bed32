"""Starts `mill` in one process, or as several ranks, with or without a launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests import forking, waiting
from tests.servers import free_port

TESTS = Path(__file__).parent
TOY, ODD = TESTS / "toy.py", TESTS / "odd.py"
MILL = ["-m", "mill"]
TOY_TASKS = {"toy_gen", "toy_gen2", "toy_choice", "toy_text", "toy_dialog"}


def environment(**more: str) -> dict[str, str]:
    """This process's environment without the variables of launchers and earlier tests."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TOY_", "RAY_"))}
    paths = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    return {**inherited, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **more}


def toy(folder: Path, tasks: str = "toy_gen,toy_choice", *more: str, model: str = "toy[path=toy]") -> list[str]:
    """The arguments of an evaluation of the toy model, or of one in odd.py."""
    file = TOY if model.startswith("toy[") and set(tasks.split(",")) <= TOY_TASKS else ODD
    return ["eval", model, tasks, "--task_paths", str(file), "--output_dir", str(folder), "--quiet", *more]


def start(command: Sequence[str], **more: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return forking.popen(command, env=environment(**more), stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def ended(process: subprocess.Popen[str], seconds: float = 300) -> tuple[int, str]:
    """The exit code and standard error."""
    try:
        _, stderr = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.terminate()  # a launcher ends its ranks, after half a minute with force
        process.communicate(timeout=60)
        raise
    return process.returncode, stderr


def start_mill(arguments: Sequence[str], **more: str) -> subprocess.Popen[str]:
    """Start mill in one process."""
    return start([sys.executable, *MILL, *arguments], **more)


def run(arguments: Sequence[str], **more: str) -> tuple[int, str]:
    return ended(start_mill(arguments, **more))


def torchrun(ranks: int, arguments: Sequence[str], program: Sequence[str] = MILL) -> list[str]:
    """The command that starts ranks as users do. It takes 10 s of a processor, and each rank as long as a real start."""
    port = str(free_port())
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(ranks), "--master_port", port]
    return [*launcher, *program, *arguments]


def run_ranks(ranks: int, arguments: Sequence[str], program: Sequence[str] = MILL, **more: str) -> tuple[int, str]:
    """The first exit code that is not 0, and all standard errors."""
    results = [ended(process) for process in start_ranks(ranks, arguments, program, **more)]
    return next((code for code, _ in results if code), 0), "".join(stderr for _, stderr in results)


def start_ranks(
    ranks: int, arguments: Sequence[str], program: Sequence[str] = MILL, **more: str
) -> list[subprocess.Popen[str]]:
    """Start ranks without a launcher."""
    variables = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **more}
    command = [sys.executable, *program, *arguments]
    return [start(command, RANK=str(rank), LOCAL_RANK=str(rank), **variables) for rank in range(ranks)]


def until(condition: Callable[[], Any], seconds: float = 120) -> Any:
    return waiting.until(condition, "sign of it", seconds)


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def mill_lines(stderr: str) -> list[str]:
    """The lines that mill printed; launchers print many more."""
    return [line for line in stderr.splitlines() if line.startswith("mill")]
