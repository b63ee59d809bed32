"""Parts of transformers' layers that another function computes faster, inside a context: rotary embeddings, norms and gated
MLPs by one kernel each on CUDA, and on a CPU products of a few rows in a faster order.

Nothing is assumed of a model's code: a part is replaced only where a probe gives the same values both ways.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from mill.models.prefix import fused_kernels
from mill.models.prefix.paths import ROUNDED_ONCE, is_rounded_once, is_same_function

if TYPE_CHECKING:
    import torch

    from mill.models.prefix.paths import Function


TOKENS, SCALES = 16, (0.01, 1.0, 100.0)  # on which norms are compared
ANY_SIZE = 64  # of a head
ROTATION = "apply_rotary_pos_emb"  # a function of each architecture's module
FEWEST, MOST = 8, 32  # rows where products are faster in the other order

Part = tuple[Any, str, Any]
"""An owner, the name of its attribute, and what replaces that."""


@contextmanager
def fused_layers(model: Any) -> Iterator[None]:
    """Inside this context norms, rotations and gated MLPs of a model on CUDA are one kernel each, where they can be."""
    with _replaced(model, "_mill_fused", lambda: [*_find_norms(model), *_find_layers(model)]):
        yield


@contextmanager
def small_products(model: Any, rows: int) -> Iterator[None]:
    """Inside this context the model's linear layers compute this number of rows in the faster order, if that is another."""
    import torch

    if FEWEST <= rows <= MOST and torch.backends.mkl.is_available():
        with _replaced(model, "_mill_linear_layers", lambda: _find_linear(model)):
            yield
    else:
        yield


@contextmanager
def _replaced(model: Any, name: str, find: Callable[[], list[Part]]) -> Iterator[None]:
    """Inside this context the parts are replaced; they are looked for once, and kept under a name in the model."""
    parts: list[Part] | None = model.__dict__.get(name)
    if parts is None:
        parts = model.__dict__[name] = find()
    before = [owner.__dict__.get(attribute) for owner, attribute, _ in parts]
    try:
        for owner, attribute, replacement in parts:
            setattr(owner, attribute, replacement)
        yield
    finally:
        for (owner, attribute, _), original in zip(parts, before, strict=True):
            if original is None:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, original)


# Norms.


def _find_norms(model: Any) -> list[Part]:
    """The model's RMS norms. A class that computes something else, such as 1 + weight, fails the probe and is left out."""
    norms = [module for module in model.modules() if _is_rms_norm(module)]
    if not norms or not _same_norm(norms[0]):
        return []
    return [(norm, "forward", _fused_norm(norm)) for norm in norms if type(norm) is type(norms[0])]


def _is_rms_norm(module: Any) -> bool:
    """Whether this is an RMS norm; some architectures have norms without weights."""
    named = type(module).__name__.endswith("RMSNorm") and bool(_epsilon(module))
    return named and getattr(module, "weight", None) is not None


def _epsilon(norm: Any) -> float | None:
    return getattr(norm, "variance_epsilon", None) or getattr(norm, "eps", None)


def _fused_norm(norm: Any) -> Function:
    """What is called in place of a norm's forward: torch's own function."""
    import torch

    weight, eps = norm.weight, _epsilon(norm)
    return lambda hidden: torch.nn.functional.rms_norm(hidden, (hidden.shape[-1],), weight, eps)


def _same_norm(norm: Any) -> bool:
    """Whether both are one function in float32, and the fused one rounds no worse in the norm's own dtype."""
    import torch

    single = copy.deepcopy(norm).float()
    with torch.inference_mode():
        for scale in SCALES:
            hidden = scale * torch.randn(TOKENS, norm.weight.shape[0], device=norm.weight.device)
            if not is_same_function(_fused_norm(single), single, hidden):
                return False
            rounded = hidden.to(norm.weight.dtype)
            exact = single(rounded.float())
            own, fused = ((one(rounded).float() - exact).norm() for one in (norm, _fused_norm(norm)))
            if not fused <= ROUNDED_ONCE * own:
                return False
    return True


# Gated MLPs and rotations.


def _find_layers(model: Any) -> list[Part]:
    first = next(model.parameters(), None)
    if first is None or first.element_size() != 2 or not fused_kernels.available():
        return []
    found: list[Part] = []
    classes: dict[type, bool] = {}
    for module in model.modules():
        if _is_gated(module) and "forward" not in module.__dict__:
            if type(module) not in classes:
                classes[type(module)] = _same_mlp(module)
            if classes[type(module)]:
                found.append((module, "forward", _GatedMLP(module)))
    names = {type(module).__module__ for module in model.modules() if type(module).__name__.endswith("Attention")}
    size = ANY_SIZE  # that for which the kernel is compiled ahead, where the config names it
    with suppress(Exception):
        size = fused_kernels.head_size(model.config.get_text_config().to_dict())
    for source in [sys.modules.get(name) for name in sorted(names)]:
        rotation = getattr(source, ROTATION, None)
        if rotation is not None and _same_rotation(rotation, first, size):
            found.append((source, ROTATION, _Rotation(rotation)))
    return found


def _is_gated(module: Any) -> bool:
    parts = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj", "act_fn")]
    return all(map(callable, parts)) and type(parts[3]).__name__ in ("SiLU", "SiLUActivation")


class _GatedMLP:
    """Called in place of an MLP's forward."""

    def __init__(self, mlp: Any, *, kernel: bool = True) -> None:
        self.gate, self.up, self.down, self.kernel = mlp.gate_proj, mlp.up_proj, mlp.down_proj, kernel

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        import torch

        gate, up = self.gate(hidden), self.up(hidden)
        gated = fused_kernels.gated(gate, up) if self.kernel else torch.nn.functional.silu(gate) * up
        out: torch.Tensor = self.down(gated)
        return out


def _same_mlp(mlp: Any) -> bool:
    """Whether the MLP does what is replaced, to the last bit; the kernel then rounds once what it rounds twice."""
    import torch

    try:
        weight = mlp.up_proj.weight
        with torch.inference_mode():
            hidden = torch.randn(1, 3, weight.shape[1], device=weight.device, dtype=weight.dtype)
            return all(torch.equal(_GatedMLP(mlp, kernel=False)(x), mlp(x)) for x in (hidden, 30 * hidden))
    except Exception:  # another kind of layer, such as a quantized one
        return False


class _Rotation:
    """Called in place of an architecture's function; what it does not expect goes to that."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self.original = original

    def __call__(self, q: Any, k: Any, cos: Any, sin: Any, *more: Any, **options: Any) -> Any:
        if more or options or not all(_is_plain(one, cos, sin) for one in (q, k)):
            return self.original(q, k, cos, sin, *more, **options)
        return fused_kernels.rotated(q, k, cos.contiguous(), sin.contiguous())


def _is_plain(x: Any, cos: Any, sin: Any) -> bool:
    size = x.shape[-1]
    shapes = x.dim() == 4 and x.shape[0] == 1 and cos.shape == sin.shape == (1, x.shape[2], size)
    return bool(shapes and x.is_cuda and x.stride(3) == 1 and size % 2 == 0 and x.element_size() == 2)


def _same_rotation(rotation: Any, like: torch.Tensor, size: int) -> bool:
    import torch

    shapes: Sequence[tuple[int, ...]] = ((1, 64, 4, size), (1, 64, 2, size), (1, 64, size), (1, 64, size))
    try:
        with torch.inference_mode():
            q, k, cos, sin = (torch.randn(shape, device=like.device, dtype=like.dtype) for shape in shapes)
            q, k = q.transpose(1, 2), k.transpose(1, 2)
            found, exact = _Rotation(rotation)(q, k, cos, sin), rotation(*(one.float() for one in (q, k, cos, sin)))
            return all(is_rounded_once(one, other) for one, other in zip(found, exact, strict=True))
    except Exception:  # other arguments
        return False


# Products of few rows.


def _find_linear(model: Any) -> list[Part]:
    """Layers in float32 on a CPU. A quantized or adapted layer computes something else."""
    import torch

    plain = [one for one in model.modules() if type(one) is torch.nn.Linear and "forward" not in one.__dict__]
    cpu = [one for one in plain if one.weight.device.type == "cpu" and one.weight.dtype == torch.float32]
    return [(layer, "forward", _Product(layer)) for layer in cpu]


class _Product:
    """Called in place of a linear layer's forward."""

    def __init__(self, layer: Any) -> None:
        self.weight, self.bias = layer.weight, layer.bias

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = hidden.reshape(-1, hidden.shape[-1])
        out = (self.weight @ rows.t()).t().contiguous()  # attention kernels need rows in one piece
        if self.bias is not None:
            out += self.bias
        return out.view(*hidden.shape[:-1], -1)
