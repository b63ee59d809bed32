"""The device of a model in this process, chosen at run time, and how much fits into its memory at once."""

from __future__ import annotations

import os
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


CPU_SCORING_TOKENS = 2048  # on a CPU larger batches are not faster
CPU_GENERATION_TOKENS = 16384
MOST_TOKENS = 131072
MOST_PREFILL_TOKENS = 65536  # of a forward pass beside sequences in decoding: larger ones are not faster
MOST_SLOT_TOKENS = 1 << 20
SAFETY = 0.6
SLOTS = 0.7  # of the memory that is left beside a forward pass; shared prefixes and graphs take some, too


def scoring_tokens(model: Any, *, logits_per_token: float) -> int:
    """Tokens of one scoring batch. `logits_per_token` is the share of positions with logits."""
    ceiling = CPU_SCORING_TOKENS if model.device.type == "cpu" else MOST_TOKENS
    return _fit(free_bytes(model.device), _pass_bytes(model, logits_per_token), ceiling)


def _pass_bytes(model: Any, logits_per_token: float = 0.0) -> float:
    """Of one token at the peak of a layer without gradients: the gated MLP and a few copies of the hidden state; logits
    twice, in float32."""
    config = model.config.get_text_config()
    size = _element_size(model)
    hidden = config.hidden_size
    inner = _largest(config, "intermediate_size") or 4 * hidden
    return float(size * (3 * inner + 8 * hidden) + logits_per_token * config.vocab_size * (size + 4))


def logit_rows(model: Any) -> int:
    """How many positions of one forward pass may have logits: a third of the free memory, once as they are and once in
    float32."""
    per_row = model.config.get_text_config().vocab_size * (_element_size(model) + 4)
    ceiling = CPU_SCORING_TOKENS if model.device.type == "cpu" else MOST_TOKENS
    return _fit(free_bytes(model.device) // 3, per_row, ceiling)


def generation_tokens(model: Any) -> int:
    """Prompt and answer tokens of one generation batch: limited by the KV cache, which grows by copying."""
    ceiling = CPU_GENERATION_TOKENS if model.device.type == "cpu" else 4 * MOST_TOKENS
    return _fit(free_bytes(model.device), 2 * _cache_bytes(model), ceiling)


def slot_tokens(model: Any, pass_tokens: int) -> int:
    """Prompt and answer tokens of sequences in slots, which do not grow, beside a forward pass of `pass_tokens`."""
    if model.device.type == "cpu":
        return generation_tokens(model)
    left = free_bytes(model.device) - int(pass_tokens * _pass_bytes(model))
    return max(1, min(MOST_SLOT_TOKENS, int(left * SLOTS / _cache_bytes(model))))


def _cache_bytes(model: Any) -> int:
    """The keys and values of one token in all layers; of a model without attention as if it had some, which is more than
    its state grows by."""
    config = model.config.get_text_config()
    all_heads = _largest(config, "num_attention_heads") or 1
    heads = _largest(config, "num_key_value_heads") or all_heads
    head = _largest(config, "head_dim") or config.hidden_size // all_heads
    return int(2 * config.num_hidden_layers * heads * head * _element_size(model))


def _largest(config: Any, name: str) -> int:
    """A size; the largest of one that varies by layer, and 0 where there is none."""
    try:
        value = getattr(config, name, None)
    except Exception:  # transformers names no size that varies
        value = [getattr(layer, name, None) for layer in getattr(config, "per_layer_config", ())]
    sizes = value if isinstance(value, (list, tuple)) else [value]
    return max((int(size) for size in sizes if isinstance(size, (int, float))), default=0)


def free_bytes(device: Any) -> int:
    """Free memory of a device."""
    import torch

    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 4 << 30


def _fit(free: int, per_token: float, ceiling: int) -> int:
    return max(1, min(ceiling, int(free * SAFETY / per_token)))


def _element_size(model: Any) -> int:
    return int(next(model.parameters()).element_size())
