"""What identifies a model that is made in Python: the source of its class, its arguments, and what the object holds when a
call begins. What cannot be read is equal to nothing: no answers are reused."""

from __future__ import annotations

import copy
import hashlib
import inspect
import linecache
import secrets
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from mill.api.registry import source_digest
from mill.support.secrets import is_secret

if TYPE_CHECKING:
    from mill.api.model import MillModel

_OWN = "mill"  # the package: its version is recorded by itself
_NOT_STATE = {
    "arguments", "made_with", "_source", "batch_size", "max_batch_tokens",
}  # fmt: skip
_STARTED = time.time()
_WEIGHTS = "weights in "
_DEPTH = 3  # of objects within objects in which weights are looked for


@dataclass(frozen=True)
class Unidentified:
    """Something without a value that can be compared, such as a function: it is equal to no other."""

    kind: str
    number: str = field(default_factory=lambda: secrets.token_hex(8))

    def __str__(self) -> str:
        return f"<{self.kind} {self.number}>"


@dataclass
class Made:
    """What a model was made with, and what it held when a call began and ended."""

    given: Mapping[str, Any]
    """The arguments of the constructor."""
    source: str | Unidentified | None = None
    """Of its class; empty for mill's own, None before it is needed."""
    state: Mapping[str, str] = field(default_factory=dict)
    """What it held when it was first given to a call, or when it was last found changed between two calls."""
    left: Mapping[str, str] | None = None
    holds_weights: bool = False
    """Whether weights were in memory when the call began: they are its owner's, who may have changed them."""


def constructor_parameters(cls: type) -> dict[str, inspect.Parameter]:
    """What the constructor of a backend takes. Python 3.10 gives the signature of `__new__` for that of a class."""
    return dict(list(inspect.signature(cls.__init__).parameters.items())[1:])  # type: ignore[misc]


def bound_arguments(cls: type, arguments: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a constructor by name."""
    try:
        bound = inspect.signature(cls.__init__).bind(None, *arguments, **named)  # type: ignore[misc]
    except (TypeError, ValueError):  # the constructor refuses them itself, or a copy is made without them
        return {}
    found: dict[str, Any] = {}
    for name, value in list(bound.arguments.items())[1:]:
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            found |= value
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            found |= {f"{name}[{index}]": part for index, part in enumerate(value)}
        else:
            found[name] = value
    return found


def plain_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of those that can be compared; the others are `Unidentified`."""
    return {name: copy.deepcopy(value) if _is_plain(value) else _unidentified(value) for name, value in given.items()}


def identity_of(model: MillModel) -> dict[str, Any]:
    """A model's identity, with the source of a user's class, which is another model when it is edited, and with what an
    object that a user holds has in it."""
    made = model.made_with
    if made.source is None:
        made.source = _source_of(type(model))
    source = {"source": made.source} if made.source else {}
    state = {"state": _digest(sorted(made.state.items()))} if made.state else {}
    return {**model.identity(), **source, **state}


@contextmanager
def held_by_user(models: Sequence[Any]) -> Iterator[None]:
    """A call with objects that their user holds, and may have changed since the call before. Inside this context their
    identity stays the same."""
    held = [model for model in models if hasattr(model, "made_with")]
    for model in held:
        _begin(model)
    try:
        yield
    finally:
        for model in held:
            model.made_with.holds_weights = False
            try:
                model.made_with.left = _state_of(model, known=model.made_with.state)
            except RuntimeError:  # a thread of the model is changing a list: the next call computes afresh
                model.made_with.left = None


def unidentified_parts(model: MillModel) -> list[str]:
    """What of a model cannot be read, in words."""
    name = type(model).__name__
    parts = [f"the argument {key} of {name}" for key, value in model.arguments.items() if isinstance(value, Unidentified)]
    parts += [f"the source of {name}"] * isinstance(model.made_with.source, Unidentified)
    return parts + [f"{key} of {name}" for key, value in model.made_with.state.items() if value.startswith("<")]


def _begin(model: MillModel) -> None:
    made = model.made_with
    read = {
        name: _read_argument(value, model.arguments[name]) for name, value in made.given.items() if name in model.arguments
    }
    model.arguments = {**model.arguments, **read}
    made.source, now = _source_of(type(model)), _state_of(model)
    lost = any(name.startswith(_WEIGHTS) and name not in now for name in made.state)  # others will be loaded
    if now != made.left or lost:
        made.state = now
    made.holds_weights = any(name.startswith(_WEIGHTS) for name in now)


def _read_argument(value: Any, before: Any) -> Any:
    """An argument as it is now. A list that was changed since may not be what the model works with."""
    if _is_plain(value):
        return before if repr(value) == repr(before) else _unidentified(value)
    content = _content(value, depth=1)
    return _unidentified(value) if content is None or content.startswith("<") else f"<{type(value).__name__} {content}>"


def _state_of(model: MillModel, known: Mapping[str, str] | None = None) -> dict[str, str]:
    """What an object holds: weights by content and, unless its class says by `identity` what counts, the texts, numbers and
    lists in its attributes and in the variables of its class. Weights that `known` has are not read again."""
    cls, known = type(model), known or {}
    # Whether the class says itself what identifies it, as mill's backends do.
    declared = next(base.__name__ for base in cls.__mro__ if "identity" in vars(base)) != "MillModel"
    state, attributes = dict[str, str](), dict(vars(model))
    for base in reversed(_user_bases(cls)):
        attributes = {**{name: value for name, value in vars(base).items() if name[:2] != "__"}, **attributes}
    for name, value in attributes.items():
        weights = _WEIGHTS + name
        if name in _NOT_STATE or is_secret(name):
            continue
        if _is_plain(value):
            state |= {} if declared else {name: repr(value)}
        elif weights in known:
            state[weights] = known[weights]
        elif (content := _content(value, depth=1 if declared else _DEPTH, objects=not declared)) is not None:
            state[weights] = content
    return state


def _content(value: Any, *, depth: int, objects: bool = False) -> str | None:
    """A digest of the torch modules, tensors and arrays in a value, also in containers and, with `objects`, in the
    attributes of objects, down to a depth; None where there are none. One that begins with `<` is equal to no other."""
    if (content := _array_content(value)) is not None:
        return content
    parts: Sequence[Any] = ()
    if isinstance(value, (list, tuple)):
        parts = value
    elif isinstance(value, dict):
        parts = list(value.values())
    elif objects and hasattr(value, "__dict__") and not (inspect.isclass(value) or inspect.ismodule(value)):
        parts = list(vars(value).values())
    inside = (_content(part, depth=depth - 1, objects=objects) for part in parts if depth and not _is_plain(part))
    contents = [content for content in inside if content is not None]
    return next((content for content in contents if content.startswith("<")), _digest(contents)) if contents else None


def _array_content(value: Any) -> str | None:
    """The digest of a torch module, a tensor or an array; None for anything else."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    try:
        if torch is not None and isinstance(value, torch.nn.Module):
            return _module_digest(value)
        if torch is not None and isinstance(value, torch.Tensor):
            return _digest([value.dtype, tuple(value.shape)], [_tensor_bytes(value)])
        if numpy is not None and isinstance(value, numpy.ndarray):
            return _digest([value.dtype.str, value.shape], [numpy.ascontiguousarray(value).view(numpy.uint8).data])
    except Exception:  # weights on no device, or without plain bytes
        return str(_unidentified(value))
    return None


def _module_digest(module: Any) -> str:
    """Of all parameters and buffers, and of what the modules are set to, such as which adapters are active."""
    sources = {kind: read_source(kind, late=True) for kind in {type(part) for part in module.modules()}}
    if None in sources.values():
        raise ValueError("a class of the module cannot be read")
    described: list[Any] = sorted(map(str, sources.values()))
    for name, part in module.named_modules():
        described.append((name, _described(type(part)), [(key, _described(value)) for key, value in vars(part).items()]))
    first: dict[int, str] = {}  # of names that are tied
    tensors = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    for name, tensor in tensors:
        described.append((name, first.setdefault(id(tensor), name), str(tensor.dtype), tuple(tensor.shape)))
    return _digest(described, (_tensor_bytes(tensor) for name, tensor in tensors if first[id(tensor)] == name))


def _described(value: Any) -> str:
    """A setting of a module: a plain value, or which functions and parts there are by name."""
    if _is_plain(value):
        return repr(value)
    if isinstance(value, dict):
        return repr({str(key): _described(part) for key, part in value.items()})
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _tensor_bytes(tensor: Any) -> Any:
    import torch

    return memoryview(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def _user_bases(cls: type) -> list[type]:
    """A class and its bases, as far as mill and Python do not define them."""
    own = (_OWN, "builtins", "abc", "typing")
    return [base for base in cls.__mro__ if base.__module__.partition(".")[0] not in own]


def _source_of(cls: type) -> str | Unidentified:
    """A digest of the text in which a class and its bases are defined; empty for a class of mill. One that uses variables of
    a function around it is not known by its text, unless that is a file which mill imported as a whole."""
    digests = [
        vars(base)["_source"] if "_source" in vars(base) else read_source(base, late=True) for base in _user_bases(cls)
    ]
    bases = [base for base in _user_bases(cls) if not source_digest(base.__module__)]
    around = {name for base in bases for function in _functions(base) for name in function.__code__.co_freevars}
    if None in digests or around - {"__class__"}:
        return Unidentified("source")
    return "+".join(dict.fromkeys(map(str, digests)))


def read_source(cls: type, *, late: bool = False) -> str | None:
    """A digest of the text in which a class is defined, of a file or a notebook's cell; None where it cannot be read, or is
    read so `late` that the file may have been edited since."""
    if digest := source_digest(cls.__module__):
        return digest
    names = {function.__code__.co_filename for function in _functions(cls)}
    files = {name for name in names if name != "<string>" or len(names) == 1}  # where dataclasses make methods
    texts = [
        _text_of(file, late=late)
        for file in sorted(files or {getattr(sys.modules.get(cls.__module__), "__file__", None) or ""})
    ]
    return _digest(cls.__qualname__, texts) if all(texts) else None


def _text_of(file: str, *, late: bool) -> bytes:
    """Of a file as it is now, or of a cell; empty where there is none."""
    try:
        edited = late and Path(file).stat().st_mtime > _STARTED
        return b"" if edited else Path(file).read_bytes()
    except OSError:
        return "".join(linecache.getlines(file)).encode("utf-8", "surrogatepass")


def _functions(cls: type) -> Iterator[FunctionType]:
    """The functions that the body of a class defines."""
    for value in vars(cls).values():
        function = getattr(value, "fget", None) or getattr(value, "func", None) or getattr(value, "__func__", value)
        function = inspect.unwrap(function) if callable(function) else function
        if isinstance(function, FunctionType) and function.__module__ == cls.__module__:
            yield function


def _unidentified(value: Any) -> Unidentified:
    return Unidentified(type(value).__name__)


def _digest(described: Any, contents: Any = ()) -> str:
    digest = hashlib.sha256(repr(described).encode("utf-8", "surrogatepass"))
    for content in contents:
        digest.update(content)
    return digest.hexdigest()[:32]


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(part) for name, part in value.items())
    return value is None or isinstance(value, (str, int, float, Path))
