"""Commands in new processes, from the shell's prompt and back: seconds, peak memory, and what a run records about itself."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
IMPORTS = (
    "import mill.cli.eval, mill.models.hf.model, transformers.models.llama.modeling_llama, transformers.generation.utils"
)
# `python -m mill` that also writes the peak of the GPU's memory to a file, where torch used one.
MILL = """
import atexit, os, sys
def write_peak():
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        peak = sum(map(torch.cuda.max_memory_allocated, range(torch.cuda.device_count())))
        with open(os.environ["GPU_PEAK_FILE"], "w") as file:
            file.write(str(peak))
atexit.register(write_peak)
from mill.cli.main import main
main()
"""


@dataclass(frozen=True)
class Finished:
    """A command that ended with exit code 0."""

    seconds: float
    peak_bytes: int
    """Resident memory of the largest process."""
    gpu_peak_bytes: int
    output: str


def environment(cache: Path) -> dict[str, str]:
    """That of a command which runs this tree in any folder, with compiled bytecode, as pip leaves packages."""
    data = os.pathsep.join(str(Path(path).resolve()) for path in os.environ.get("MILL_DATA", "").split(os.pathsep) if path)
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    own = {"PYTHONPATH": paths, "MILL_DATA": data, "MILL_CACHE": str(cache), "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    return {**{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}, **own}


def run_command(command: Sequence[str], given: Mapping[str, str], cwd: Path | None = None) -> Finished:
    """Run a command to its end. One that fails ends the benchmark, with the end of its output."""
    with tempfile.TemporaryDirectory() as folder:
        peak = Path(folder, "gpu_peak")
        with Path(folder, "output").open("w+", encoding="utf-8", errors="replace") as output:
            started = time.perf_counter()
            process = subprocess.Popen(
                command, env={**given, "GPU_PEAK_FILE": str(peak)}, cwd=cwd, stdout=output, stderr=subprocess.STDOUT
            )
            _, status, usage = os.wait4(process.pid, 0)  # unlike RUSAGE_CHILDREN, the memory of this child alone
            seconds = time.perf_counter() - started
            process.returncode = os.waitstatus_to_exitcode(status)
            output.seek(0)
            printed = output.read()
        if process.returncode:
            words = " ".join(word for word in command if "\n" not in word)
            sys.exit(f"exit code {process.returncode}: {words}\n{printed[-3000:]}")
        in_kilobytes = 1 if sys.platform == "darwin" else 1024
        gpu_peak = int(peak.read_text()) if peak.exists() else 0
    return Finished(seconds, usage.ru_maxrss * in_kilobytes, gpu_peak, printed)


def run_mill(arguments: Sequence[str], given: Mapping[str, str], cwd: Path | None = None) -> Finished:
    return run_command([sys.executable, "-c", MILL, *arguments], given, cwd)


def last_run(results: Path) -> Path:
    """The folder of the run in an output folder that was written last."""
    manifests = sorted(results.glob("*/*/manifest.json"), key=lambda file: file.stat().st_mtime)
    return manifests[-1].parent


def last_session(results: Path) -> dict[str, Any]:
    session: dict[str, Any] = json.loads((last_run(results) / "manifest.json").read_text(encoding="utf-8"))["sessions"][-1]
    return session


def read_tasks(results: Path) -> dict[str, Any]:
    """The results of each task of the last run."""
    tasks: dict[str, Any] = json.loads((last_run(results) / "results.json").read_text(encoding="utf-8"))["tasks"]
    return tasks


def warm_up(given: Mapping[str, str]) -> None:
    """Import what a command imports once, so that bytecode is compiled and files are in the system's cache."""
    run_command([sys.executable, "-c", IMPORTS], given)


def machine() -> str:
    return f"{os.cpu_count()} cores, {platform.machine()}"
