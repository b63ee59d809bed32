"""Weights from their files to a CUDA device, through page-locked memory.

A copy from ordinary memory reads files in one thread, at 6 GB/s. The device copies page-locked memory several times as fast,
and all cores fill it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

BLOCK = 1 << 27  # bytes of each of the two buffers: after each block this thread may wait for others
SMALLEST = 1 << 20  # bytes of a tensor that is worth it
FEWEST_THREADS = 4  # with fewer the ordinary copy is faster


def to_cuda(model: Any, device: str) -> Any:
    """The model on the device."""
    import torch

    if torch.get_num_threads() >= FEWEST_THREADS:
        try:
            with torch.cuda.device(device), torch.no_grad():
                _copy_large([parameter for parameter in model.parameters() if _is_large(parameter)], device)
        except RuntimeError:  # no page-locked memory, or none of the device, which the ordinary copy reports
            torch.cuda.synchronize(device)
    return model.to(device)


def _is_large(parameter: torch.Tensor) -> bool:
    """Quantized weights have tensor types of their own, which know how they are moved."""
    import torch

    plain = type(parameter) is torch.nn.Parameter and type(parameter.data) is torch.Tensor and parameter.is_contiguous()
    return plain and parameter.device.type == "cpu" and parameter.nbytes >= SMALLEST


def _copy_large(parameters: list[torch.nn.Parameter], device: str) -> None:
    import torch

    buffers = [torch.empty(BLOCK, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    copied = [torch.cuda.Event() for _ in buffers]
    blocks = 0
    for parameter in parameters:
        moved = torch.empty_like(parameter.data, device=device)
        source, target = (one.view(-1).view(torch.uint8) for one in (parameter.data, moved))
        for part, goal in zip(source.split(BLOCK), target.split(BLOCK), strict=True):
            which = blocks % len(buffers)
            copied[which].synchronize()  # of the block before, which the buffer had
            block = buffers[which][: len(part)]
            block.copy_(part)
            goal.copy_(block, non_blocking=True)
            copied[which].record()
            blocks += 1
        parameter.data = moved
    torch.cuda.synchronize(device)
