"""How much of a difference rounding explains: measured on the model itself, never chosen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    Function = Callable[[torch.Tensor], torch.Tensor]

DRAWS = 4  # roundings that are tried on each row
MORE = 8  # times as many, before a difference is more than rounding
ROUNDED_ONCE = 1.05  # times the error of rounding, which varies with the values
MOST, MOST_MEDIAN = 4, 2  # times the noise that a single difference and the median of all may be


@contextmanager
def rounded_otherwise(model: Any) -> Iterator[None]:
    """Inside this context the output of each layer is rounded up or down at random, as another order of its sums might.

    Values of a batch are rounded independently of each other: copies of one row show how far rounding moves its results.
    """
    table = model.get_input_embeddings()
    with ExitStack() as stack:
        for module in model.modules():
            own = chain(module.parameters(recurse=False), module.buffers(recurse=False))
            if module is not table and next(own, None) is not None:
                stack.callback(module.register_forward_hook(_round_otherwise).remove)
        yield


def _round_otherwise(_: Any, __: Any, output: Any) -> Any:
    import torch

    if isinstance(output, tuple):
        return tuple(_round_otherwise(_, __, part) for part in output)
    if not isinstance(output, torch.Tensor) or not output.is_floating_point():
        return output
    factor = torch.rand(output.shape, device=output.device).sub_(0.5).mul_(torch.finfo(output.dtype).eps).add_(1)
    return factor.mul_(output).to(output.dtype)


def is_rounded_once(found: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether a result in half precision is that in float32, rounded: its error is no larger than that of rounding."""
    rounded = exact.to(found.dtype).float()
    same_shape = found.shape == exact.shape
    return same_shape and bool((found.float() - exact).norm() <= ROUNDED_ONCE * (rounded - exact).norm())


def is_same_function(one: Function, other: Function, x: torch.Tensor) -> bool:
    """Whether two functions are the same in the precision of `x`: they differ by no more than `other` does when its input is
    rounded otherwise."""
    import torch

    wanted = other(x)
    moved = other(x * (1 + torch.finfo(x.dtype).eps * torch.rand_like(x).sub(0.5).mul(2))) - wanted
    return bool((one(x) - wanted).norm() <= 2 * moved.norm())


def exceeds(differences: Sequence[float], noise: Sequence[float]) -> bool:
    """Whether differences are more than rounding explains. One that is not a number is."""
    if not all(map(math.isfinite, differences)):
        return True
    return max(differences) > MOST * max(noise) or median(differences) > MOST_MEDIAN * median(noise)
