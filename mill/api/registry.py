"""Names of models, tasks and metrics: built-in ones (imported when used), entry points, and those of a user's Python files,
which are imported here: config files, custom backends and custom tasks."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

from mill.api.backend import Backend
from mill.api.errors import MillError, SpecError, UnknownName
from mill.support.files import check_path
from mill.support.terminal import describe, warn

T = TypeVar("T")
C = TypeVar("C")


FILE_MODULE = "mill_file_"  # how the names of modules begin that are a user's files
DESCRIPTION = "BACKEND"  # the attribute of a module, or of a class, that describes a backend


@dataclass(frozen=True)
class Registration:
    """What a user's file registered."""

    registry: Registry[Any]
    name: str
    entry: Any
    override: bool


class NameTaken(SpecError):
    """A user's file takes a name of mill; the message goes after that of the file."""


@dataclass
class CallNames:
    """What the files of one call registered, by kind and name; these files with their modules; and what was opened for the
    folders of tasks that it names."""

    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    sources: dict[str, Any] = field(default_factory=dict)


_call: ContextVar[CallNames | None] = ContextVar("names of the call", default=None)
_file: ContextVar[list[Registration] | None] = ContextVar("registrations of the file being imported", default=None)


def names_of_call() -> CallNames | None:
    return _call.get()


@contextmanager
def own_names() -> Iterator[None]:
    """Names that files register inside this context end with it, and are not seen outside of it."""
    token = _call.set(CallNames())
    try:
        yield
    finally:
        _call.reset(token)


@contextmanager
def registering() -> Iterator[list[Registration]]:
    """What a file registers inside this context."""
    made: list[Registration] = []
    token = _file.set(made)
    try:
        yield made
    finally:
        _file.reset(token)


class Registry(Generic[T]):
    """Name -> object. Entries given as "module:attribute", or as a description that names it, are imported on first use.
    `builtin` names a function that returns mill's own."""

    def __init__(self, what: str, entry_points: str, builtin: str = "") -> None:
        self.what = what
        self._group, self._builtin = entry_points, builtin
        self._entries: dict[str, T | str | Backend] = {}
        self._plugins_read = False

    def add(self, name: str, entry: T | str, *, override: bool = False) -> None:
        """Later registrations win. The name of a built-in is taken with `override` alone: a user's file is refused without
        it, a package warned of."""
        made, before = _file.get(), self._find(name)
        if not override and _is_builtin(before) and not _is_same(before, entry):
            if made is not None:
                how = "choose another name, or register it with override=True"
                raise NameTaken(f"registers the {self.what} {name!r}, which is built in: {how}")
            self._warn_taken(name, getattr(entry, "__module__", None) or entry)
            return
        if made is not None:
            made.append(Registration(self, name, entry, override))
        (self._of_call if made is not None and not _is_imported(entry) else self._entries)[name] = entry

    def entries(self) -> dict[str, T | str | Backend]:
        """All entries by name; those of this call's files win."""
        self._read_builtin()
        return {**self._entries, **self._of_call} if _call.get() is not None else dict(self._entries)

    @property
    def _of_call(self) -> dict[str, T | str | Backend]:
        """What files register: for this call, or for the process where there is none."""
        call = _call.get()
        return self._entries if call is None else call.entries.setdefault(self.what, {})

    def _find(self, name: Any) -> T | str | Backend | None:
        self._read_builtin()
        return self._of_call.get(name, self._entries.get(name))

    def names(self) -> list[str]:
        self._read_plugins()
        return sorted(self.entries())

    def target(self, name: str) -> str | None:
        """The "module:attribute" of a name that is not imported yet."""
        entry = self._find(name)
        return entry.target if isinstance(entry, Backend) else entry if isinstance(entry, str) else None

    def defined_in(self, module: str) -> list[str]:
        """The names whose object a given module defines."""
        return [name for name, entry in self.entries().items() if getattr(entry, "__module__", None) == module]

    def is_builtin(self, name: str) -> bool:
        """Whether mill itself defines what has this name."""
        return _is_builtin(self._find(name))

    def __contains__(self, name: object) -> bool:
        if self._find(name) is None:
            self._read_plugins()
        return self._find(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def get(self, name: str, hint: str = "") -> T:
        if name not in self:
            raise UnknownName(self.what, name, self.names(), hint)
        entry = self._find(name)
        if isinstance(entry, Backend):
            described: T = _import(entry.target)
            return described
        if isinstance(entry, str):
            found = _import(entry)
            if isinstance(found, ModuleType):  # a module registers its names while it is imported
                found = self._find(name)
                if isinstance(found, str):
                    raise MillError(f"{entry} does not register the {self.what} {name!r}")
            table = self._of_call if name in self._of_call else self._entries
            entry = table[name] = found
        assert entry is not None
        return entry

    def _warn_taken(self, names: str, who: object) -> None:
        warn(f"mill already has a {self.what} {names}: {who} is not used under that name")

    def _read_builtin(self) -> None:
        if self._builtin:
            builtin, self._builtin = self._builtin, ""
            self._entries = {**_import(builtin)(), **self._entries}

    def _read_plugins(self) -> None:
        if self._plugins_read:
            return
        self._plugins_read = True
        self._read_builtin()  # first: a package does not replace what is mill's own
        from importlib.metadata import entry_points

        for point in entry_points(group=self._group):
            target = f"{point.module}:{point.attr}" if point.attr else point.module
            described = _description(target) if point.attr == DESCRIPTION else None
            names = described.names if described else (point.name,)
            free = tuple(name for name in names if not self.is_builtin(name))
            if len(free) < len(names):
                self._warn_taken(", ".join(sorted(set(names) - set(free))), target)
            if described and free:
                described = replace(described, name=free[0], aliases=free[1:])
            for name in free:
                self._entries.setdefault(name, described or target)


def _description(target: str) -> Backend | None:
    """The description of a backend; one that cannot be imported is refused when the backend is used."""
    try:
        found = _import(target)
    except MillError:
        return None
    return found if isinstance(found, Backend) else None


def _is_builtin(entry: Any) -> bool:
    """Whether mill itself defines an entry: "mill.module:name", a class or function of mill, or a partial of one."""
    entry = entry.target if isinstance(entry, Backend) else entry
    module = entry if isinstance(entry, str) else getattr(getattr(entry, "func", entry), "__module__", "")
    return str(module).startswith("mill.")


def _is_imported(entry: Any) -> bool:
    """Whether another module than a user's file defines an entry, as one that the file imports: Python imports that once, so
    its names stay."""
    entry = getattr(entry, "func", entry)
    return (inspect.isclass(entry) or inspect.isroutine(entry)) and not str(entry.__module__).startswith(FILE_MODULE)


def _is_same(earlier: Any, entry: Any) -> bool:
    """Equal, or a lazy entry that was imported meanwhile."""
    return bool(earlier == entry) or (isinstance(earlier, (str, Backend)) and _is_builtin(entry))


def _import(target: str) -> Any:
    module, _, attribute = target.partition(":")
    try:
        found = importlib.import_module(module)
        return functools.reduce(getattr, attribute.split("."), found) if attribute else found
    except MillError:
        raise
    except (ImportError, AttributeError) as error:
        raise MillError(f"cannot import {target}: {error}") from error


models: Registry[Any] = Registry("backend", "mill.models", "mill.models.spec.backends:builtin_backends")
tasks: Registry[Any] = Registry("task", "mill.tasks")
metrics: Registry[Any] = Registry("metric", "mill.metrics")
checks: Registry[Any] = Registry("check", "mill.checks")
exporters: Registry[Any] = Registry("target", "mill.exporters", "mill.export.target:builtin_exporters")
commands: Registry[Any] = Registry("command", "mill.commands")


def _decorator(registry: Registry[Any], names: tuple[str, ...], override: bool) -> Callable[[C], C]:
    def register(entry: C) -> C:
        for name in names:
            registry.add(name, entry, override=override)
        return entry

    return register


def register_model(*names: str | Backend, override: bool = False) -> Callable[[C], C]:
    """Make a MillModel subclass usable in `mill eval` by these names, or by those of its description; `override` replaces
    built-in backends."""
    described = next((name for name in names if isinstance(name, Backend)), None)
    spelled = [part for name in names for part in (name.names if isinstance(name, Backend) else (name,))]
    register = _decorator(models, tuple(spelled), override)

    def describe(entry: C) -> C:
        if described is not None:
            setattr(entry, DESCRIPTION, described)
        return register(entry)

    return describe


def register_task(*names: str, override: bool = False) -> Callable[[C], C]:
    """Register a Task subclass (called with its name), any callable that makes a task, or a Benchmark.

    `override` says that a built-in task of the same name is replaced on purpose.
    """
    return _decorator(tasks, names, override)


def register_metric(*names: str, override: bool = False, better: str = "") -> Callable[[C], C]:
    """Register a function from sample values to an Estimate. `better` is "higher" or "lower": tables then mark the best
    value of metrics with this name."""
    if better not in ("", "higher", "lower"):
        raise SpecError(f"better={better!r}: higher or lower is needed")

    def register(function: C) -> C:
        if better:
            function.better = better  # type: ignore[attr-defined]
        return _decorator(metrics, names, override)(function)

    return register


_imported: dict[str, str] = {}  # outside of calls: files with their modules
_registered: dict[str, list[Registration]] = {}
_digests: dict[str, str] = {}
_lock = threading.RLock()  # a file may import others


def imported_files() -> tuple[str, ...]:
    """Every file imported in this call or before any, in order; a worker process imports the same."""
    call = names_of_call()
    files = {**_imported, **(call.files if call is not None else {})}
    return tuple(path for path, name in files.items() if name in sys.modules)


def source_digest(module: str) -> str | None:
    """The digest of a file's content when it was imported under this name; None for other modules."""
    return _digests.get(module)


def import_file(path: str | Path, what: str) -> ModuleType:
    """Import a file under a module name derived from its path and content, once: an edited file is another module. What it
    registers is registered again; an exception becomes one line that names the file."""
    check_path(str(path))
    path = Path(path).expanduser()
    if not path.is_file():
        raise SpecError(f"{what} {path} does not exist")
    if path.suffix != ".py":
        raise SpecError(f"{what} {path} is not a Python file")
    try:
        source = path.read_bytes()
    except OSError as error:
        raise SpecError(f"{what} {path} cannot be read: {error.strerror or error}") from error
    digest, resolved = hashlib.blake2b(source, digest_size=16).hexdigest(), str(path.resolve())
    name = f"{FILE_MODULE}{path.stem}_{hashlib.blake2b(f'{resolved} {digest}'.encode(), digest_size=8).hexdigest()}"
    with _lock:  # another thread may be importing the same file
        if name in sys.modules:
            with registering():
                for made in _registered.get(name, ()):
                    made.registry.add(made.name, made.entry, override=made.override)
        else:
            _digests[name] = digest
            _execute(path, name, source, what)
    call = names_of_call()
    files = _imported if call is None else call.files
    files.pop(resolved, None)
    files[resolved] = name
    return sys.modules[name]


def _execute(path: Path, name: str, source: bytes, what: str) -> None:
    """Compiles the text that was read: stored byte code is found by size and second, so it may miss an edit."""
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path)
    try:
        with registering() as made:
            exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
    except BaseException as error:  # third-party code may raise anything
        del sys.modules[name]
        if isinstance(error, NameTaken):
            raise SpecError(f"{what} {path} {error}") from error
        if isinstance(error, (MillError, KeyboardInterrupt)):
            raise
        raise SpecError(f"{what} {path} raised {describe(error)}") from error
    _registered[name] = made
