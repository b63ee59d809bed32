"""The backends that mill knows: its own, those of other packages, and those of a user's files."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Iterable

import mill.models
from mill.api.backend import Backend
from mill.api.model import LOGPROB_KINDS, TEXT_KINDS
from mill.api.registry import DESCRIPTION, models
from mill.api.request import CLASSIFY, ZERO_SHOT
from mill.api.task import Task, TaskType

_TASK_TYPES = {
    TaskType.GENERATIVE_QA: TEXT_KINDS,
    TaskType.MULTIPLE_CHOICE: TEXT_KINDS,
    TaskType.PERPLEXITY: LOGPROB_KINDS,
    TaskType.ZERO_SHOT_CLASSIFICATION: {ZERO_SHOT},
    TaskType.SUPERVISED_CLASSIFICATION: {CLASSIFY},
}


@functools.cache
def builtin_backends() -> dict[str, Backend]:
    """Every `Backend` in a module of `mill.models`, by each of its names; first those that need no extra."""
    names = [f"mill.models.{module.name}" for module in pkgutil.iter_modules(mill.models.__path__)]
    values = [value for name in names for value in vars(importlib.import_module(name)).values()]
    found = [value for value in values if isinstance(value, Backend)]
    found.sort(key=lambda backend: (backend.extra != "", backend.name))
    return {name: backend for backend in found for name in backend.names}


def backends() -> list[Backend]:
    """Every backend that is described, each once."""
    models.names()  # those of packages, too
    described = [backend_info(name) for name in models.entries()]
    return list({backend.name: backend for backend in described if backend is not None}.values())


def backend_info(name: str) -> Backend | None:
    """The description of a backend; of a class without one that replaces a built-in backend, the built-in one's."""
    entry = models.entries().get(name) if name in models else None
    if isinstance(entry, type):
        entry = vars(entry).get(DESCRIPTION)
    return entry if isinstance(entry, Backend) else builtin_backends().get(name)


def model_argument(name: str) -> str:
    """The argument of a backend that names the model, where a spec gives nothing but a name."""
    info = backend_info(name)
    return info.model_argument if info else "path"


def address_argument(name: str) -> str:
    """The argument of a backend that is a server's address; empty where it has none."""
    info = backend_info(name)
    return info.address_argument if info else ""


def of_prefix(prefix: str) -> tuple[str, dict[str, str]] | None:
    """The backend that a word before a colon means, and the arguments that it implies. Mill's own names come first."""
    for backend in backends() if not models.is_builtin(prefix) else ():
        if prefix in backend.prefixes:
            return backend.name, dict(backend.prefixes[prefix])
    return (prefix, {}) if prefix in models else None


def task_types(backend: Backend) -> list[TaskType]:
    return [task_type for task_type, kinds in _TASK_TYPES.items() if kinds <= backend.kinds]


def backends_serving(tasks: Iterable[Task]) -> list[str]:
    """The name of every described backend with models that can serve one of these tasks."""
    needs = [(task.kinds, task.modalities) for task in tasks]
    return [
        backend.name
        for backend in backends()
        if any(kinds <= set(backend.kinds) and modalities <= backend.modalities for kinds, modalities in needs)
    ]
