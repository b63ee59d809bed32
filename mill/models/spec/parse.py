"""A model spec, as users type it, parsed once into a backend and its arguments.

    hf[path=org/name,dtype=float32]   a registered backend with arguments
    org/name, org/name@revision, ./folder, org/name[batch_size=4]   hf
    vllm:org/name                     any backend's name, a colon and a model
    mlx-community/name, mlx:name      mlx-lm
    file.gguf, gguf:name              llama-cpp
    ollama:llama3.1:8b, llama3.1:8b   openai-compat, at Ollama's address
    vllm-mlx:name                     vllm-mlx
    http://host:8000/v1[model=m]      openai-compat
    config.py, config.py[dtype=...]   a config file, read by load_model_from_file()
    smollm2_135m_instruct             a packaged config, by its name (mill ls models --configs)

A name without a slash is looked up in this order: registered backends, files and folders of the current folder, packaged
configs. `./name` is always the folder and `hf[path=name]` always the hub model. With --base_url or --backend the name is
that of a model of the server or backend.

A quoted argument value ("a,b") may contain commas and brackets; a list cannot be given inline.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mill.api.errors import SpecError, UnknownName
from mill.api.registry import models
from mill.models.spec.backends import address_argument, model_argument, of_prefix
from mill.support.secrets import is_secret, is_variable, looks_like_url, redact_address, redact_spec, remember

FOLDER = Path(__file__).parent.parent / "configs"


@functools.cache
def packaged_configs() -> dict[str, Path]:
    """The file of every packaged config, by name."""
    files = sorted(file for file in FOLDER.rglob("*.py") if not file.name.startswith("_"))
    return {file.stem: file for file in files}


def config_file(path: str | Path) -> Path:
    """The file of a config, given by path or by name. `mill/models/configs/...` is the packaged file in any folder that has
    no such file itself."""
    path = Path(path)
    if str(path) in packaged_configs():
        return packaged_configs()[str(path)]
    packaged = path.parts[:3] == ("mill", "models", "configs") and not path.exists()
    return FOLDER.parents[2] / path if packaged else path


_QUOTED = re.compile(r"""(["'])(?:(?!\1)[^\\]|\\.)*\1""", re.DOTALL)
_BRACES = re.compile(r"\{(?:[^{}]|\{[^{}]*\})*\}")  # JSON
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")


@dataclass(frozen=True)
class Spec:
    """A backend and its arguments. Before a config is read, `config` is its path or name, and `backend` is empty."""

    backend: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    config: str = ""

    def __str__(self) -> str:
        """The canonical spelling: parsing it gives an equal Spec."""
        head = self.config or self.backend
        inner = ",".join(f"{name}={_quote(str(value))}" for name, value in self.arguments.items())
        return f"{head}[{inner}]" if inner else head


def split_list(text: str, *, quoted: bool = False) -> list[str]:
    """Split at commas outside brackets, braces and quoted values: `hf[path=a,dtype=b],org/name` has two parts.

    With `quoted` a whole part may be quoted, too.
    """
    parts, current, quote, depth, escaped, braces_end = [], "", "", 0, False, 0
    for position, char in enumerate(text):
        if position < braces_end:
            pass
        elif quote:
            if char == quote and not escaped:
                quote = ""
            escaped = char == "\\" and not escaped
        elif char in "\"'" and (_opens_value(current, depth) or (quoted and not current.strip())):
            quote = char
        elif char == "{" and current.rstrip().endswith("="):
            braces = _BRACES.match(text, position)
            braces_end = braces.end() if braces else 0
        elif char in "[]":
            depth += 1 if char == "[" else -1
        elif char == "," and depth <= 0:
            parts.append(current)
            current = ""
            continue
        current += char
    parts.append(current)
    return [part.strip() for part in parts if part.strip()]


def _opens_value(before: str, depth: int) -> bool:
    """Whether a quote opens a value here: after `=`, or as an item of a list (`until=["=",b]`)."""
    before = before.rstrip()
    in_list = depth > 0 and before.rpartition("[")[0].endswith("=")
    return before.endswith("=") or (in_list and before.endswith(("[", ",")))


def parse_spec(text: str) -> Spec:
    """Parse one model spec. Raises SpecError or UnknownName with a hint at what works."""
    text = text.strip()
    head, arguments = _split_brackets(text)
    if not head:
        raise SpecError(f"{text!r} names no model; give a backend, a model path or a config file")
    if head.endswith(".py"):
        return Spec("", arguments, config=head)
    if head in models:
        return Spec(head, arguments)
    if head in packaged_configs() and not _exists(head):
        return Spec("", arguments, config=head)
    backend, implied = _backend_of(head)
    twice = sorted(set(implied) & set(arguments))
    if twice:
        raise SpecError(f"{redact_spec(text)!r} gives {', '.join(twice)} twice: before the brackets and inside them")
    return Spec(backend, {**implied, **arguments})


def make_spec(model: str, *, backend: str = "", base_url: str = "", if_served: bool = False) -> Spec:
    """A model spec with a separate backend or server address, as the check commands take them.

    The backend may have arguments in brackets, in addition to those of the model. With an address alone, a bare model name
    is served by an OpenAI-compatible server. With `if_served`, models that run in this process ignore the address.
    """
    head, arguments = _split_brackets(model.strip())
    bare = not (head.endswith((".py", ".gguf")) or head in models or ":" in head or head.startswith("mlx-community/"))
    if backend:
        spec = _on_backend(model, backend)
    elif base_url and bare and not (if_served and _exists(head)):
        spec = Spec("openai-compat", {"model": head, **arguments})
    else:
        spec = parse_spec(model)
    argument = address_argument(spec.backend) if base_url else ""
    if not base_url or (if_served and not argument):
        return spec
    if not argument:
        if not spec.backend:
            raise SpecError(f"base_url is an argument of a config: write {spec.config}[base_url=...]")
        raise SpecError(f"base_url {redact_address(base_url)}: the backend {spec.backend} talks to no server")
    return Spec(spec.backend, {**spec.arguments, argument: base_url})


def backend_name(backend: str) -> str:
    """The name of a backend that may have arguments in brackets."""
    return _split_brackets(backend.strip())[0]


def _on_backend(model: str, backend: str) -> Spec:
    """A model on a separately named backend, which must be its own if it names one. Both may have arguments in brackets."""
    name, more = _split_brackets(backend.strip())
    head, arguments = _split_brackets(model.strip())
    named: Mapping[str, str] = {}
    if head.endswith(".py") or head in models:
        spec = parse_spec(model)
        arguments = dict(spec.arguments)
        if spec.backend != name:
            own = spec.backend or "of a config file"
            raise SpecError(f"{redact_spec(model)!r} names the backend {own}, and --backend {name}")
    elif name not in models:
        raise UnknownName("backend", name, models.names())
    else:
        named = _named(name, head)
    twice = sorted(({*named} & {*arguments, *more}) | ({*arguments} & {*more}))
    if twice:
        raise SpecError(f"{redact_spec(model)!r} on {redact_spec(backend)!r} gives {', '.join(twice)} twice")
    return Spec(name, {**named, **arguments, **more})


def addresses_of(spec: Spec) -> list[str]:
    """The comma-separated addresses in a spec, of servers that all serve the model."""
    given = spec.arguments.get(address_argument(spec.backend), "")
    return sorted(part.strip() for part in str(given).split(",") if part.strip())  # the order does not matter


def at_address(spec: Spec, address: str) -> Spec:
    """The same model on one of its servers."""
    return Spec(spec.backend, {**spec.arguments, address_argument(spec.backend): address})


def _backend_of(head: str) -> tuple[str, dict[str, str]]:
    """The backend that a head implies, if it is not a registered name, and the implied arguments."""
    if looks_like_url(head):
        return "openai-compat", {"base_url": head}
    prefix, colon, rest = head.partition(":")
    if colon and (meant := of_prefix(prefix)) is not None:
        backend, implied = meant
        if not rest:
            raise SpecError(f"{head!r} names no model after the colon")
        return backend, {**_named(backend, rest), **implied}
    if not head.endswith(".gguf") and _exists(head):
        return "hf", {"path": head}
    name, revision = _split_revision(head)
    if name.endswith(".gguf"):
        return "llama-cpp", {"model": name, **revision}
    if name.startswith("mlx-community/"):
        return "mlx-lm", {"path": name, **revision}
    if "/" in name:
        return "hf", {"path": name, **revision}
    if colon and prefix and rest:
        return _backend_of(f"ollama:{head}")
    hint = f"for a model of that name write hf[path={head}]"
    raise UnknownName("backend or config", head, [*models.names(), *packaged_configs()], hint)


def _named(backend: str, rest: str) -> dict[str, str]:
    if backend == "openai-compat":  # an Ollama tag may contain an @digest
        return {"model": rest}
    name, revision = _split_revision(rest)
    return {model_argument(backend): name, **revision}


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # a name that is too long, or has a NUL, is not a path
        return False


def _split_revision(text: str) -> tuple[str, dict[str, str]]:
    name, at, revision = text.rpartition("@")
    return (name, {"revision": revision}) if at and name and revision else (text, {})


def _split_brackets(text: str) -> tuple[str, dict[str, str]]:
    head, bracket, rest = text.partition("[")
    if not bracket:
        if "]" in text:
            raise SpecError(f"{redact_spec(text)!r} closes a bracket that was never opened")
        return text, {}
    if not rest.endswith("]"):
        raise SpecError(f"{redact_spec(text)!r} does not close its bracket; write name[key=value,key=value]")
    return head.strip(), _parse_arguments(rest[:-1], text)


def _parse_arguments(inner: str, whole: str) -> dict[str, str]:
    arguments: dict[str, str] = {}
    spec = repr(redact_spec(whole))
    for part in split_list(inner):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not _KEY.fullmatch(key):
            shown = redact_address(part) if "***" in spec else part  # it may be the end of a password with a comma
            raise SpecError(f"{shown!r} in {spec} is not key=value")
        key = key.replace("-", "_")
        if key in arguments:
            raise SpecError(f"{key!r} is given twice in {spec}")
        if value.startswith("["):
            raise SpecError(f"{key} in {spec} is a list, which brackets cannot contain: set it in a config file (.py)")
        if is_secret(key):
            remember(value)
            arguments[key] = _secret(key, _unquote(value, "***", spec))
        else:
            arguments[key] = _unquote(value, redact_spec(value), spec)
    return arguments


def _secret(key: str, value: str) -> str:
    """The value of a secret, which may be the name of an environment variable: api_key=$MY_KEY."""
    if is_variable(value):
        if value[1:] not in os.environ:
            raise SpecError(f"{key}={value}: there is no environment variable {value[1:]}")
        value = os.environ[value[1:]]
    remember(value)
    return value


def _quote(value: str) -> str:
    """Unchanged where parsing it gives the same value, else in double quotes."""
    if value and value == value.strip() and not re.search(r"[,\[\]\"'\\]", value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _unquote(value: str, shown: str, spec: str) -> str:
    """A value without its quotes. Messages have `shown` and `spec`, which contain no secret."""
    if value[:1] not in ('"', "'"):
        if ("[" in value or "]" in value) and not _BRACES.fullmatch(value):
            raise SpecError(f"{shown!r} in {spec} has a bracket: put the value in quotes")
        return value
    if not _QUOTED.fullmatch(value):
        raise SpecError(f"a quoted value in {spec} has no closing quote at its end: {shown}")
    return re.sub(r"\\(.)", r"\1", value[1:-1], flags=re.DOTALL)
