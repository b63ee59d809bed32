"""The arguments of a backend's constructor: what it takes, and what a model was made with, which identifies it."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Unidentified:
    """An argument without a value that can be compared, such as a function: it is equal to no other."""

    kind: str
    number: str = field(default_factory=lambda: secrets.token_hex(8))

    def __str__(self) -> str:
        return f"<{self.kind} {self.number}>"


def constructor_parameters(cls: type) -> dict[str, inspect.Parameter]:
    """What the constructor of a backend takes. Python 3.10 gives the signature of `__new__` for that of a class."""
    return dict(list(inspect.signature(cls.__init__).parameters.items())[1:])  # type: ignore[misc]


def bound_arguments(cls: type, arguments: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a constructor by name. What cannot be compared is `Unidentified`."""
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
    return {name: value if _is_plain(value) else Unidentified(type(value).__name__) for name, value in found.items()}


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_plain(part) for name, part in value.items())
    return value is None or isinstance(value, (str, int, float, Path))
