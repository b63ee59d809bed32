"""What a backend says about itself, beside its class. Specs, lists, messages and the documentation read it; the class, with
the packages that it needs, is imported when a model is opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mill.api.message import MEDIA_KINDS

TEXT_AND_MEDIA = frozenset({"text", *MEDIA_KINDS})


@dataclass(frozen=True)
class Backend:
    """The description of a backend. A package names it in the entry point group `mill.models`, as `my_package:BACKEND`; a
    file gives it to `register_model`."""

    name: str
    about: str = ""
    target: str = ""
    """The class, as "module:Class"; empty where `register_model` decorates it."""
    aliases: tuple[str, ...] = ()
    prefixes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Further words before the colon of a spec (`ollama:llama3.1`), each with the arguments that it implies."""
    model_argument: str = "path"
    """The argument that names the model, in specs such as `NAME:org/model`."""
    address_argument: str = ""
    """The argument that --base_url sets; empty for models that run in this process."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """What each argument of the class is for, in a line. Defaults are those of the class."""
    kinds: frozenset[str] = frozenset()
    """The kinds of requests that it serves; empty where only an opened model knows."""
    modalities: frozenset[str] = frozenset({"text"})
    """The inputs of the models that it can open; one model may take fewer."""
    package: str = ""
    """What must be importable, beside the packages that mill always needs."""
    extra: str = ""
    """The extra of mill that installs it."""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)
