"""A network whose weights are spread over ranks (FSDP): every rank computes every forward pass together with the others.

How many passes a rank needs depends on its requests: on their lengths, on when an answer ends. So before each pass the
ranks tell each other who still has work, and one that has none computes an empty pass for the others' sake.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from mill.api.batching import describe
from mill.api.errors import MillError, ModelError, SpecError
from mill.api.ranks import local_rank, world_size

PATIENCE = timedelta(minutes=10)  # within one forward pass


def check_ranks() -> None:
    if world_size() == 1:
        raise SpecError("hf[fsdp=true] spreads weights over ranks: start with torchrun --nproc_per_node N -m mill eval ...")


class ShardedPasses:
    """The forward passes of a network that is spread over all ranks."""

    def __init__(self, model: Any) -> None:
        import torch.distributed as dist

        self._model, self._dist = model, dist
        self._group = dist.new_group(backend="gloo", timeout=PATIENCE)
        self._idle = False
        self.empty_passes = 0
        # Before FSDP's own, which already waits for the other ranks.
        model.register_forward_pre_hook(self._before, prepend=True)
        model.forward = _fatal(model.forward)

    def settle(self) -> None:
        """This rank has nothing left: keep the others company until they have nothing either."""
        import torch

        self._idle = True
        try:
            while self._anyone(busy=False):
                with torch.inference_mode():
                    self._model(input_ids=torch.zeros((1, 1), dtype=torch.long, device=self._model.device), use_cache=False)
                self.empty_passes += 1
        finally:
            self._idle = False

    def _before(self, module: Any, arguments: Any) -> None:
        if not self._idle:
            self._anyone(busy=True)

    def _anyone(self, *, busy: bool) -> bool:
        import torch

        flag = torch.tensor([float(busy)])
        try:
            self._dist.all_reduce(flag, group=self._group)
        except RuntimeError as error:
            raise ModelError(f"another rank is gone: {str(error).splitlines()[0][:200]}") from error
        return bool(flag.item())


def _fatal(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A pass that fails ends the run: the others wait in the middle of it, and trying again would meet them there."""

    @functools.wraps(forward)
    def guarded(*given: Any, **more: Any) -> Any:
        try:
            return forward(*given, **more)
        except MillError:
            raise
        except Exception as error:
            raise ModelError(f"a pass of all ranks failed here: {describe(error)}") from error

    return guarded


def shard(model: Any) -> ShardedPasses:
    """Spread a loaded network over all ranks, layer by layer; each ends with its part on its own device."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(local_rank())
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo", timeout=PATIENCE)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    layers = set(getattr(model, "_no_split_modules", None) or ())
    for module in model.modules():
        if type(module).__name__ in layers:
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return ShardedPasses(model)
