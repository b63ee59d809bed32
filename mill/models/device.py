"""The device of a model in this process, chosen at run time."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mill.api.errors import ModelError
from mill.api.model import ComputeDevice
from mill.support.processes import local_rank, world_size

if TYPE_CHECKING:
    import torch

FOR_WEIGHTS = 0.6  # of the free memory of a device; the rest is for caches and passes


def choose_device(device_map: str, weight_bytes: Callable[[], int | None] = lambda: None) -> str | None:
    """One device by name, or None if the model goes to several. `auto` is the available accelerator; of several it is the
    first one, if that has room for so many bytes of weights."""
    import torch

    if device_map == "auto":
        if torch.cuda.is_available() and world_size() > 1:  # one device for each process on this machine
            return f"cuda:{local_rank() % torch.cuda.device_count()}"
        if torch.cuda.device_count() > 1:
            needed = weight_bytes()
            fits = needed is not None and needed <= FOR_WEIGHTS * torch.cuda.mem_get_info(0)[0]
            return "cuda:0" if fits else None
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    if device_map.startswith("cuda") and not torch.cuda.is_available():
        raise ModelError(f"device_map={device_map}, but this machine has no CUDA device; use device_map=cpu")
    return device_map if device_map.partition(":")[0] in ("cpu", "cuda", "mps", "xpu") else None


def make_current(device: torch.device) -> None:
    """Triton's kernels, CUDA graphs and events are those of the current device of their thread."""
    import torch

    if device.type == "cuda":
        torch.cuda.set_device(device)


def one_device(device_map: str) -> str:
    """As `choose_device`, for models that use a single device."""
    return choose_device(device_map) or ("cuda" if device_map == "auto" else device_map)


def read_device(model: Any) -> ComputeDevice:
    """The device of a loaded model of transformers, and what one token costs in its layers: two operations a parameter.
    Embeddings are looked up, and the language model head is applied only where tokens are scored."""
    import torch

    tables = {id(one) for one in (model.get_input_embeddings(), model.get_output_embeddings()) if one is not None}
    inside = {id(weight) for module in model.modules() if id(module) in tables for weight in module.parameters()}
    parameters = [weight for weight in model.parameters() if id(weight) not in inside]
    device = next(model.parameters()).device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine() or device.type
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    return ComputeDevice(name, dtype, 2.0 * sum(weight.numel() for weight in parameters))


def cpu_has_bfloat16() -> bool:
    """Whether the CPU has bfloat16 arithmetic; True if that cannot be determined."""
    if platform.system() == "Darwin":
        return True
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return True
    return "bf16" in flags
