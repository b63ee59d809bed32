"""Patches of third-party packages, and calls into their private parts: with the versions each is for. It imports
`mill.api` and `mill.support`.

| package | what it touches | why | versions |
| --- | --- | --- | --- |
| gguf | replaces `GGUFReader` and `get_tensor_name_map` during a load | files are parsed three times | 0.16 to 0.19 |
| datasets, huggingface_hub | set offline during a load | they retry for half a minute | 3.0 to 5.2, 0.30 to 1.33 |
| mlx-lm | calls `mlx_lm.utils._download` | no public function returns a model's folder | 0.32 |
| mlx-lm | passes `rope_theta`, `rope_scaling` to `load` | it ignores `rope_parameters` of transformers 5 | 0.32 |
| torch | calls `aten._scaled_dot_product_flash_attention_for_cpu` | public ones return no log-sum-exp | 2.4 to 2.13 |
| torch | calls `aten._flash_attention_forward` | as above, for packed sequences | 2.4 to 2.13 |

Each package has a test in `tests/compat` that needs nothing else. `scripts/check_compat.py` runs these tests in temporary
environments, with the oldest version that `pyproject.toml` allows and with the newest.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mill.api.errors import ModelError
from mill.support.terminal import warn

if TYPE_CHECKING:
    import torch


@contextlib.contextmanager
def replaced(owner: Any, **values: Any) -> Iterator[None]:
    """Inside this context attributes of a package's module or class have these values."""
    before = {name: vars(owner)[name] for name in values if name in vars(owner)}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name in values:
            if name in before:
                setattr(owner, name, before[name])
            else:
                delattr(owner, name)


HUB_MEMORY_S = 60.0
_offline = threading.RLock()  # for one thread at a time: another would put back what this one has set


@contextlib.contextmanager
def reachable_hub() -> Iterator[None]:
    """Inside this context packages read only the hub's cache if the hub cannot be reached: otherwise they retry for half a
    minute. If they then miss something, the error is the reason why the hub could not be reached."""
    from huggingface_hub import constants

    problem = None if constants.HF_HUB_OFFLINE else _hub_problem(constants.ENDPOINT, int(time.monotonic() / HUB_MEMORY_S))
    if problem is None:
        yield
        return
    datasets = sys.modules.get("datasets")
    config = getattr(datasets, "config", constants)
    with _offline, replaced(constants, HF_HUB_OFFLINE=True), replaced(config, HF_HUB_OFFLINE=True):
        try:
            yield
        except (OSError, ValueError) as error:  # as they report what is not in the cache
            raise ConnectionError(problem) from error


@functools.lru_cache(maxsize=1)
def _hub_problem(endpoint: str, minute: int) -> str | None:
    """Why the hub did not answer in this minute."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(endpoint, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception as error:  # of the HTTP client, whichever the hub's package uses
        return str(error) or type(error).__name__
    return None


_originals: dict[str, Any] = {}


def cached_gguf_reads() -> contextlib.AbstractContextManager[None]:
    """Inside this context `gguf` returns its last reader and name table again if the file is unchanged."""
    library: Any = importlib.import_module("gguf")
    _originals.update(reader=library.GGUFReader, names=library.get_tensor_name_map)
    return replaced(library, GGUFReader=_reader, get_tensor_name_map=_names)


def clear_gguf_cache() -> None:
    """Free the parsed header: that of a large vocabulary takes more memory than the tokenizer."""
    _read.cache_clear()


def _reader(path: str | Path) -> Any:
    stat = Path(path).stat()
    return _read(str(path), stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=1)
def _read(path: str, modified_ns: int, size: int) -> Any:
    return _originals["reader"](path)


@functools.lru_cache(maxsize=1)
def _names(architecture: Any, blocks: int) -> Any:
    return _originals["names"](architecture, blocks)


def model_folder(path: str, revision: str | None) -> Path:
    """The folder of a model, downloaded from the hub if it is not local."""
    from mlx_lm.utils import _download

    return Path(_download(path, revision=revision))


def rope_overrides(config: dict[str, Any]) -> dict[str, Any]:
    """Config fields to pass to mlx-lm for a model that transformers 5 saved.

    transformers 5 writes the rope settings to `rope_parameters`. mlx-lm does not read that field: it would use its default
    base and return wrong results without an error.
    """
    rope = config.get("rope_parameters")
    if not isinstance(rope, dict) or "rope_theta" in config:
        return {}
    if "rope_theta" not in rope:
        raise ModelError("mlx-lm would misread this model's rope settings: rope_parameters has no single rope_theta")
    overrides: dict[str, Any] = {"rope_theta": rope["rope_theta"]}
    if rope.get("rope_type", "default") != "default":
        overrides["rope_scaling"] = {name: value for name, value in rope.items() if name != "rope_theta"}
    warn(f"mlx-lm does not read rope_parameters in config.json; mill passes {', '.join(overrides)} to it")
    return overrides


def cpu_flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float,
    causal: bool = False,
    mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(batch, heads, tokens, size) in; the output and the log-sum-exp of (batch, heads, tokens) out. float32 on a CPU."""
    import torch

    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, lse = flash(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
    return out, lse


@functools.cache
def has_cuda_flash_attention(device: int) -> bool:
    """Whether the kernel below runs on this device: torch is built with it, and the device is Ampere or newer."""
    import torch

    available = getattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)()
    return bool(available) and torch.cuda.get_device_capability(device) >= (8, 0)


def cuda_flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    bounds_q: torch.Tensor,
    bounds_k: torch.Tensor,
    longest_q: int,
    longest_k: int,
    scale: float,
    causal: bool = False,
    used_k: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sequences of any length, packed: (tokens, heads, size) in; the output and the log-sum-exp of (heads, tokens) out.

    `bounds_q` and `bounds_k` are the cumulative lengths of the sequences in int32, from 0. `used_k` is how many keys of
    each sequence are read. Half precision on CUDA.
    """
    import torch

    flash = torch.ops.aten._flash_attention_forward
    out, lse, *_ = flash(
        q, k, v, bounds_q, bounds_k, longest_q, longest_k, 0.0, causal, False, scale=scale, seqused_k=used_k
    )
    return out, lse
