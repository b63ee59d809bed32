"""Names of models, tasks and metrics: built-in ones (imported when used), entry points, and those of a user's files."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Generic, TypeVar

from mill.api.errors import MillError, UnknownName

T = TypeVar("T")
C = TypeVar("C")


class Registry(Generic[T]):
    """Name -> object. Entries given as "module:attribute" are imported on first use."""

    def __init__(self, what: str, entry_points: str) -> None:
        self.what = what
        self._group = entry_points
        self._entries: dict[str, T | str] = {}
        self._plugins_read = False

    def add(self, name: str, entry: T | str) -> None:
        """Later registrations win, so that a user's file can replace a built-in."""
        self._entries[name] = entry

    def names(self) -> list[str]:
        self._read_plugins()
        return sorted(self._entries)

    def target(self, name: str) -> str | None:
        """The "module:attribute" of a name that is not imported yet."""
        entry = self._entries.get(name)
        return entry if isinstance(entry, str) else None

    def defined_in(self, module: str) -> list[str]:
        """The names whose object a given module defines."""
        return [name for name, entry in self._entries.items() if getattr(entry, "__module__", None) == module]

    def __contains__(self, name: object) -> bool:
        if name not in self._entries:
            self._read_plugins()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def get(self, name: str, hint: str = "") -> T:
        if name not in self:
            raise UnknownName(self.what, name, self.names(), hint)
        entry = self._entries[name]
        if isinstance(entry, str):
            found = _import(entry)
            if isinstance(found, ModuleType):  # a module registers its names while it is imported
                found = self._entries[name]
                if isinstance(found, str):
                    raise MillError(f"{entry} does not register the {self.what} {name!r}")
            entry = self._entries[name] = found
        return entry

    def _read_plugins(self) -> None:
        if self._plugins_read:
            return
        self._plugins_read = True
        from importlib.metadata import entry_points

        for point in entry_points(group=self._group):
            self._entries.setdefault(point.name, f"{point.module}:{point.attr}" if point.attr else point.module)


def _import(target: str) -> Any:
    module, _, attribute = target.partition(":")
    try:
        found = importlib.import_module(module)
        return functools.reduce(getattr, attribute.split("."), found) if attribute else found
    except MillError:
        raise
    except (ImportError, AttributeError) as error:
        raise MillError(f"cannot import {target}: {error}") from error


models: Registry[Any] = Registry("backend", "mill.models")
tasks: Registry[Any] = Registry("task", "mill.tasks")
metrics: Registry[Any] = Registry("metric", "mill.metrics")


def _decorator(registry: Registry[Any], names: tuple[str, ...]) -> Callable[[C], C]:
    def register(entry: C) -> C:
        for name in names:
            registry.add(name, entry)
        return entry

    return register


def register_model(*names: str) -> Callable[[C], C]:
    """Make a MillModel subclass usable by these names in `mill eval`."""
    return _decorator(models, names)


def register_task(*names: str) -> Callable[[C], C]:
    """Register a Task subclass (called with its name), any callable that makes a task, or use on a Benchmark."""
    return _decorator(tasks, names)


def register_metric(*names: str) -> Callable[[C], C]:
    """Register a function from sample values to an Estimate."""
    return _decorator(metrics, names)
