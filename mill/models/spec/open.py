"""From a spec to an opened model: config files, argument checks, and one clear line for a bad argument."""

from __future__ import annotations

import importlib.util
import inspect
import math
import typing
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any
from urllib.parse import urlsplit

from mill.api.consent import current_consent
from mill.api.errors import MillError, MissingPackage, ModelError, SpecError, UnknownName
from mill.api.identity import constructor_parameters
from mill.api.model import MillModel
from mill.api.registry import import_file, models
from mill.models.spec.backends import ARGUMENTS, backend_info
from mill.models.spec.parse import Spec, config_file, parse_spec
from mill.support.secrets import is_secret, redact_address
from mill.support.terminal import describe

CHAT_NAMES = ("use_chat_template", "apply_chat_template")
# What other tools call the argument that names the model.
_SYNONYMS = dict.fromkeys(
    ("pretrained", "model", "model_name", "model_path", "model_name_or_path", "path"), ("path", "model")
)
_TRUE, _FALSE, _NONE = {"true", "1", "yes", "on"}, {"false", "0", "no", "off"}, {"none", "null", "auto"}


def load_model_from_file(path: str | Path) -> dict[str, Any]:
    """The `model` dict of a Python config file: keyword arguments of a backend, and its name under `type`.

    A file without `model` that registers one backend means that backend. `path` may be the name of a packaged config.
    """
    module = import_file(config_file(path), "config file")
    model = getattr(module, "model", None)
    registered = {models.get(name): name for name in models.defined_in(module.__name__)}
    if model is None and len(registered) == 1:
        return {"type": next(iter(registered.values()))}
    if not isinstance(model, dict):
        what = "has no top-level dict `model`" if model is None else f"has a `model` of type {type(model).__name__}"
        raise SpecError(f'config file {path} {what}; write model = {{"type": "hf", "path": "org/name"}}')
    if not isinstance(model.get("type"), str):
        raise SpecError(f'config file {path} names no backend: add a "type" to its `model`, one of {", ".join(models)}')
    return dict(model)


def resolve_spec(spec: Spec) -> Spec:
    """Read the config file of a spec that names one; inline arguments win over the file."""
    if not spec.config:
        return spec
    arguments = load_model_from_file(spec.config)
    backend = arguments.pop("type")
    inline = {"use_chat_template" if name in CHAT_NAMES else name: value for name, value in spec.arguments.items()}
    return Spec(backend, {**arguments, **inline})


def split_chat_template(spec: Spec, given: bool | None, option: str) -> tuple[Spec, bool | None]:
    """A resolved spec without its use_chat_template, and whether the chat template is applied; None where nothing says it.

    It is a setting of the run: `hf[use_chat_template=true]` and --apply_chat_template are one run. Where the spec and the
    command contradict each other, `option` names what was given. Custom backends, and servers, for which `chat` chooses the
    endpoint, keep their argument.
    """
    if not any(name in spec.arguments for name in (*CHAT_NAMES, "chat")):
        return spec, given
    cls = _model_class(spec.backend)
    known = arguments_of(cls)
    name, arguments = _chat_name(known), _canonical(spec.arguments, known, spec.backend)
    try:
        value = _coerce(arguments.get(name or ""), bool | None, "")
    except SpecError:  # refused where the model is opened
        value = None
    if not isinstance(value, bool):
        return spec, given
    if given is not None and given is not value:
        raise SpecError(f"{spec.backend}[{name}={str(value).lower()}] contradicts {option}: leave one of them out")
    if name != "use_chat_template" or not cls.__module__.startswith("mill."):
        return spec, given
    return Spec(spec.backend, {key: other for key, other in arguments.items() if key != name}), value


def open_model(spec: Spec | str, *, batch_size: int | None = None) -> MillModel:
    """Open the model of a spec. Weights load at first use; `batch_size` applies if the spec gives none."""
    resolved = resolve_spec(parse_spec(spec) if isinstance(spec, str) else spec)
    cls = _model_class(resolved.backend)
    arguments = checked_arguments(cls, resolved.backend, resolved.arguments)
    if current_consent().no_remote_code and "trust_remote_code" in arguments_of(cls):
        arguments["trust_remote_code"] = False
    try:
        model = cls(**arguments)
    except MillError:
        raise
    except Exception as error:
        raise ModelError(f"{resolved.backend} could not be opened: {describe(error)}") from error
    if not isinstance(model, MillModel):
        raise ModelError(f"{resolved.backend} made a {type(model).__name__}, not a MillModel")
    model.arguments = arguments
    size = arguments.get("batch_size", batch_size)
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
        raise SpecError(f"{resolved.backend}[batch_size={size}]: give a count of at least 1; leave it out for auto")
    takes = "batch_size" in arguments_of(cls) and "batch_size" not in arguments
    if size is not None and (model.batch_size is None or takes):  # from the command, or ignored by a backend's **kwargs
        model.batch_size = size
    return model


def _model_class(backend: str) -> type:
    info = backend_info(backend)
    lazy = models.target(backend) is not None  # a class that replaces it needs other packages
    if info and info.extra and lazy and importlib.util.find_spec(info.package) is None:
        raise MissingPackage(f"the backend {backend}", info.package, info.extra)
    cls = models.get(backend)
    if not isinstance(cls, type):
        raise ModelError(f"the backend {backend} is registered as {cls!r}, which is not a class")
    return cls


def arguments_of(cls: type) -> dict[str, inspect.Parameter]:
    """The keyword arguments of a backend, by name."""
    parameters = constructor_parameters(cls)
    return {name: p for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def described_arguments(backend: str) -> list[tuple[str, str, str]]:
    """The arguments of a backend: name, default and what it is for; "..." stands for any others."""
    info, rows = backend_info(backend), []
    known = arguments_of(models.get(backend))
    about = {**ARGUMENTS, **(info.arguments if info else {})}
    for name, parameter in known.items():
        default = "" if parameter.default in (None, "", parameter.empty) else parameter.default
        text = ", ".join(default) if isinstance(default, (list, tuple)) else str(default)
        rows.append((name, text.lower() if isinstance(default, bool) else text, about.get(name, "")))
    return rows + [(name, "", text) for name, text in (info.arguments if info else {}).items() if name not in known]


def takes_argument(backend: str, name: str) -> bool:
    return name in arguments_of(_model_class(backend))


def checked_arguments(cls: type, backend: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as the types that the backend declares; unknown, missing and badly typed ones are refused by name."""
    known = arguments_of(cls)
    given = _canonical(given, known, backend)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in constructor_parameters(cls).values())
    for name in given:
        if name not in known and not takes_any:
            synonym = next((synonym for synonym in _SYNONYMS.get(name, ()) if synonym in known), None)
            if synonym is not None:
                raise SpecError(f"unknown argument of {backend} {name!r}; did you mean {synonym}?")
            raise UnknownName(f"argument of {backend}", name, known, hint=f"it takes {', '.join(known)}")
    if takes_any and getattr(cls, "is_server", False):
        _check_key_names(cls, backend, given)
    missing = [name for name, p in known.items() if p.default is p.empty and name not in given]
    if missing:
        raise SpecError(f"{backend} needs {', '.join(missing)}: write {backend}[{missing[0]}=...]")
    try:
        hints = typing.get_type_hints(cls.__init__)  # type: ignore[misc]
    except Exception:  # annotations of third-party classes may name what cannot be imported here
        hints = {}
    size = given.get("batch_size")
    if isinstance(size, str) and size.lower() not in _NONE and not size.strip().lstrip("+-").isdecimal():
        raise SpecError(f"{backend}[batch_size={size}]: give a count or auto")
    return {name: _coerce(value, hints.get(name), f"{backend}[{name}={value}]") for name, value in given.items()}


def _check_key_names(cls: type, backend: str, given: Mapping[str, Any]) -> None:
    """Refuse a key under a name that a server backend would send as a parameter of the request.

    LiteLLM has many secrets of providers (aws_secret_access_key, vertex_credentials): only spellings of api_key are refused.
    """
    bases = [base for base in cls.__mro__ if "__init__" in vars(base)]
    declared = {name for base in bases for name in constructor_parameters(base)}
    info = backend_info(backend)
    for name in {*given} - declared:
        misspelt = name.lower().replace("_", "") in ("apikey", "authorization", "key")
        if misspelt or (is_secret(name) and (info is None or info.package != "litellm")):
            raise SpecError(f"{backend} has no argument {name}; did you mean api_key?")


def _canonical(given: Mapping[str, Any], known: Mapping[str, Any], backend: str) -> dict[str, Any]:
    """Arguments by the names that the backend declares. dtype=auto is the backend's default."""
    name = _chat_name(known)
    spelled = [spelling for spelling in given if spelling in CHAT_NAMES and name is not None]
    if len({*spelled, *({name} & {*given})}) > 1:
        raise SpecError(f"{backend} gives {name} twice: {' and '.join(dict.fromkeys([*spelled, name or '']))}")
    arguments = {name if name is not None and key in spelled else key: value for key, value in given.items()}
    if arguments.get("dtype") == "auto":
        del arguments["dtype"]
    return arguments


def _chat_name(known: Mapping[str, Any]) -> str | None:
    """What a backend calls the argument for the chat template."""
    return next((name for name in (*CHAT_NAMES, "chat") if name in known), None)


def _coerce(value: Any, hint: Any, where: str) -> Any:
    """An inline string as the annotated type of its parameter; values of a config file stay as they are."""
    if not isinstance(value, str):
        return value
    options = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, UnionType) else (hint,)
    if type(None) in options and value.lower() in _NONE:
        return None
    if bool in options and value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    for kind in (int, float):
        if kind in options:
            try:
                number = kind(value)
            except ValueError:
                continue
            if number != number:
                raise SpecError(f"{where}: {value!r} is not a number")
            return number
    if str in options or Any in options:
        return value
    if hint is None:
        return guess(value)
    if any(typing.get_origin(option) in (list, tuple, set, dict) for option in options):
        raise SpecError(f"{where}: a list cannot be given in brackets, set it in a config file (.py)")
    names = " or ".join("none" if o is type(None) else getattr(o, "__name__", str(o)) for o in options)
    raise SpecError(f"{where}: {value!r} is not {names}")


def guess(value: str) -> Any:
    """A value without a declared type: a number, true or false, or the text itself."""
    lowered = value.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def check_argument(name: str, value: Any, *, valid: bool, needed: str) -> None:
    if not valid:
        raise SpecError(f"{name}={value!r}: give {needed}")


def check_flag(name: str, value: Any) -> None:
    check_argument(name, value, valid=isinstance(value, bool), needed="true or false")


def check_whole(name: str, value: Any, *, least: int, most: float = math.inf) -> None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    limits = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
    check_argument(name, value, valid=whole and least <= value <= most, needed=f"a whole number {limits}")


def check_key(key: Any, where: str) -> str | None:
    """A key as it is sent in a header: stripped, and refused if it would break the header."""
    if key is None:
        return None
    if not isinstance(key, str):
        raise SpecError(f"{where}: the key must be a string")
    key = key.strip()
    if any(ord(char) < 32 or ord(char) == 127 for char in key):
        raise SpecError(f"{where}: the key contains a line break or another control character; give the key alone")
    if any(ord(char) > 255 for char in key):
        raise SpecError(
            f"{where}: the key contains a character that an HTTP header cannot have; give the key as it was issued"
        )
    return key or None


def check_address(address: Any, name: str = "base_url") -> None:
    check_argument(name, address, valid=isinstance(address, str), needed="a string")
    shown = redact_address(address)
    if not address.lower().startswith(("http://", "https://")):
        raise SpecError(f"{name}={shown}: a URL starts with http:// or https://")
    if "," in address:
        raise SpecError(f"{name}={shown}: several addresses are supported by mill eval only")
    if any(ord(char) <= 32 or ord(char) == 127 for char in address):
        raise SpecError(f"{name}={shown!r}: a URL has no spaces and no control characters")
    try:
        url = urlsplit(address)
        valid = url.hostname and (url.port is None or url.port > 0)
    except ValueError:
        hint = "; in a password write %2F for /, %3F for ?, %23 for # and %40 for @" if "@" in address else ""
        raise SpecError(f"{name}={shown}: not a valid URL; write http://host:port{hint}") from None  # ValueError quotes it
    if not valid:
        raise SpecError(f"{name}={shown}: no host; write http://host:port")
