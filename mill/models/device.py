"""Which device a model of this process runs on, chosen at run time."""

from __future__ import annotations

import platform
from pathlib import Path

from mill.api.errors import ModelError
from mill.api.ranks import local_rank, world_size


def choose_device(asked: str) -> str | None:
    """One device by name, or None where a model should be spread over several. `auto` takes the accelerator there is."""
    import torch

    if asked == "auto":
        if torch.cuda.is_available() and world_size() > 1:  # a device for each of the processes on this machine
            return f"cuda:{local_rank() % torch.cuda.device_count()}"
        if torch.cuda.device_count() > 1:
            return None
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    if asked.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(f"the device {asked} was asked for, but there is no CUDA device here; cpu would work")
    return asked if asked.partition(":")[0] in ("cpu", "cuda", "mps", "xpu") else None


def one_device(asked: str) -> str:
    """As `choose_device`, for models that are never spread."""
    return choose_device(asked) or ("cuda" if asked == "auto" else asked)


def cpu_has_bfloat16() -> bool:
    """Whether the CPU multiplies bfloat16 itself. Where that cannot be read the answer is yes: no false alarm."""
    if platform.system() == "Darwin":
        return True
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return True
    return "bf16" in flags
