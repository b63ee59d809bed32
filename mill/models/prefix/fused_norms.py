"""RMS norms in one kernel: on CUDA the five kernels that transformers launches take a twentieth of a forward pass."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mill.models.prefix.rounding import ROUNDED_ONCE, is_same_function

if TYPE_CHECKING:
    import torch

TOKENS, SCALES = 16, (0.01, 1.0, 100.0)  # on which both are compared


@contextmanager
def fused_norms(model: Any) -> Iterator[None]:
    """Inside this context torch's function computes RMS norms on CUDA, if a probe showed that it gives the same values."""
    norms = _fusable(model)
    for norm in norms:
        norm.forward = _Fused(norm)
    try:
        yield
    finally:
        for norm in norms:
            del norm.forward


class _Fused:
    """Called in place of a norm's forward."""

    def __init__(self, norm: Any) -> None:
        self.weight, self.eps = norm.weight, _epsilon(norm)

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        import torch

        return torch.nn.functional.rms_norm(hidden, (hidden.shape[-1],), self.weight, self.eps)


def _fusable(model: Any) -> list[Any]:
    """The model's RMS norms. A class that computes something else, such as 1 + weight, fails the probe and is left out."""
    norms: list[Any] | None = model.__dict__.get("_mill_norms")
    if norms is None:
        norms = [module for module in model.modules() if _is_rms_norm(module)]
        norms = [norm for norm in norms if type(norm) is type(norms[0])] if norms and _same(norms[0]) else []
        model.__dict__["_mill_norms"] = norms
    return norms


def _is_rms_norm(module: Any) -> bool:
    """Whether this is an RMS norm on CUDA; some architectures have norms without weights."""
    weight = getattr(module, "weight", None)
    named = type(module).__name__.endswith("RMSNorm") and bool(_epsilon(module))
    return named and weight is not None and bool(weight.is_cuda)


def _same(norm: Any) -> bool:
    """Whether both are one function in float32, and the fused one rounds no worse in the norm's own dtype."""
    import torch

    single = copy.deepcopy(norm).float()
    with torch.inference_mode():
        for scale in SCALES:
            hidden = scale * torch.randn(TOKENS, norm.weight.shape[0], device=norm.weight.device)
            if not is_same_function(_Fused(single), single, hidden):
                return False
            rounded = hidden.to(norm.weight.dtype)
            exact = single(rounded.float())
            own, fused = ((one(rounded).float() - exact).norm() for one in (norm, _Fused(norm)))
            if not fused <= ROUNDED_ONCE * own:
                return False
    return True


def _epsilon(norm: Any) -> float | None:
    return getattr(norm, "variance_epsilon", None) or getattr(norm, "eps", None)
