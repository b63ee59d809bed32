"""A model whose weights are sharded over ranks (FSDP): all ranks compute every forward pass together.

The number of passes of a rank depends on its requests: on their lengths, and on when an answer ends. So before each pass the
ranks exchange whether they have work left, and a rank without work computes an empty pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from mill.api.batching import Completed
from mill.api.errors import MillError, ModelError
from mill.support.processes import local_rank
from mill.support.terminal import describe

PASS_TIMEOUT = timedelta(minutes=10)


class ShardedPasses:
    """The forward passes of a model that is sharded over all ranks."""

    def __init__(self, model: Any) -> None:
        import torch.distributed as dist

        self._model, self._dist = model, dist
        self._group = dist.new_group(backend="gloo", timeout=PASS_TIMEOUT)
        self._idle = False
        self.empty_passes = 0
        # Before FSDP's hook, which already waits for the other ranks.
        model.register_forward_pre_hook(self._before, prepend=True)
        model.forward = _fatal(model.forward)

    def synchronize(self) -> None:
        """This rank has no work left: compute empty passes until no rank has any."""
        import torch

        self._idle = True
        try:
            while self._any_busy(busy=False):
                with torch.inference_mode():
                    self._model(input_ids=torch.zeros((1, 1), dtype=torch.long, device=self._model.device), use_cache=False)
                self.empty_passes += 1
        finally:
            self._idle = False

    def in_step(self, stream: Iterator[Completed]) -> Iterator[Completed]:
        """A stream that ends when those of all ranks do."""
        yield from stream
        self.synchronize()

    def _before(self, module: Any, arguments: Any) -> None:
        if not self._idle:
            self._any_busy(busy=True)

    def _any_busy(self, *, busy: bool) -> bool:
        import torch

        flag = torch.tensor([float(busy)])
        try:
            self._dist.all_reduce(flag, group=self._group)
        except RuntimeError as error:
            raise ModelError(f"another rank died: {str(error).splitlines()[0][:200]}") from error
        return bool(flag.item())


def _fatal(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A failed pass ends the run: the other ranks wait in the middle of it, so it cannot be repeated."""

    @functools.wraps(forward)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return forward(*args, **kwargs)
        except MillError:
            raise
        except Exception as error:
            raise ModelError(f"a forward pass failed on this rank: {describe(error)}") from error

    return guarded


def shard(model: Any) -> ShardedPasses:
    """Shard a loaded model over all ranks, layer by layer; each rank has its shard on its device."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(local_rank())
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo", timeout=PASS_TIMEOUT)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    layers = set(getattr(model, "_no_split_modules", None) or ())
    for module in model.modules():
        if type(module).__name__ in layers:
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return ShardedPasses(model)
