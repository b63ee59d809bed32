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
        self._overrides: set[str] = set()

    def add(self, name: str, entry: T | str, *, override: bool = False) -> None:
        """Later registrations win. A task file that takes the name of a built-in is refused unless it says `override`."""
        self._entries[name] = entry
        if override:
            self._overrides.add(name)

    def entries(self) -> dict[str, T | str]:
        """A copy of all entries, for `replaced_since` and `restore`."""
        return dict(self._entries)

    def restore(self, entries: dict[str, T | str]) -> None:
        """Back to what `entries` returned."""
        self._entries = dict(entries)

    def replaced_since(self, earlier: dict[str, T | str]) -> list[str]:
        """The built-in names that have another entry than before and whose registration did not say `override`."""
        return [
            name
            for name, entry in earlier.items()
            if _is_builtin(entry) and not _is_same(entry, self._entries[name]) and name not in self._overrides
        ]

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

    def is_builtin(self, name: str) -> bool:
        """Whether mill itself defines what has this name."""
        return name in self._entries and _is_builtin(self._entries[name])

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


def _is_builtin(entry: Any) -> bool:
    """Whether mill itself defines an entry: "mill.module:name", a class or function of mill, or a partial of one."""
    module = entry if isinstance(entry, str) else getattr(getattr(entry, "func", entry), "__module__", "")
    return str(module).startswith("mill.")


def _is_same(earlier: Any, entry: Any) -> bool:
    """Equal, or a lazy entry that was imported meanwhile."""
    return bool(earlier == entry) or (isinstance(earlier, str) and _is_builtin(entry))


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


def _decorator(registry: Registry[Any], names: tuple[str, ...], override: bool) -> Callable[[C], C]:
    def register(entry: C) -> C:
        for name in names:
            registry.add(name, entry, override=override)
        return entry

    return register


def register_model(*names: str, override: bool = False) -> Callable[[C], C]:
    """Make a MillModel subclass usable by these names in `mill eval`; `override` replaces built-in backends."""
    return _decorator(models, names, override)


def register_task(*names: str, override: bool = False) -> Callable[[C], C]:
    """Register a Task subclass (called with its name), any callable that makes a task, or a Benchmark.

    `override` says that a built-in task of the same name is replaced on purpose.
    """
    return _decorator(tasks, names, override)


def register_metric(*names: str, override: bool = False) -> Callable[[C], C]:
    """Register a function from sample values to an Estimate."""
    return _decorator(metrics, names, override)
