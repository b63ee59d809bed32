"""Imports a user's Python file: config files, custom backends and custom tasks."""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import sys
import threading
from pathlib import Path
from types import CodeType, ModuleType

from mill.api.batching import describe
from mill.api.errors import MillError, SpecError
from mill.api.registry import FILE_MODULE, Registration, names_of_call, registering

_imported: dict[str, str] = {}  # outside of calls: files with their modules
_registered: dict[str, list[Registration]] = {}
_digests: dict[str, str] = {}
_lock = threading.RLock()  # a file may import others


class _SourceLoader(importlib.machinery.SourceFileLoader):
    """Compiles the text that was read: stored byte code is found by size and second, so it may miss an edit."""

    def __init__(self, name: str, path: str, source: bytes) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self._source, self.path)
        return code


def check_path(text: str) -> None:
    """Refuse what cannot be a path on this system: too long, a loop of links, with a NUL. It need not exist."""
    try:
        Path(text).expanduser().stat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    except (OSError, ValueError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or error
        raise SpecError(f"{text[:60]!r}{'...' * (len(text) > 60)} is not a path: {why}") from error


def is_file(text: str) -> bool:
    """Whether a text names an existing file; one that cannot be a path does not."""
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def imported_files() -> tuple[str, ...]:
    """Every file imported in this call or before any, in order; a worker process imports the same."""
    call = names_of_call()
    files = {**_imported, **(call.files if call is not None else {})}
    return tuple(path for path, name in files.items() if name in sys.modules)


def source_digest(module: str) -> str | None:
    """The digest of a file's content when it was imported under this name; None for other modules."""
    return _digests.get(module)


def registrations_of(module: ModuleType) -> list[Registration]:
    """What a user's file registers."""
    return _registered[module.__name__]


def forget_file(module: ModuleType) -> None:
    """Undo what the file of a module registered; it is not imported any more."""
    for made in reversed(_registered.pop(module.__name__)):
        made.undo()
    del sys.modules[module.__name__]


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
                    made.apply()
        else:
            _digests[name] = digest
            _execute(path, name, source, what)
    call = names_of_call()
    files = _imported if call is None else call.files
    files.pop(resolved, None)
    files[resolved] = name
    return sys.modules[name]


def _execute(path: Path, name: str, source: bytes, what: str) -> None:
    loader = _SourceLoader(name, str(path), source)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None  # a loader was given
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with registering() as made:
            loader.exec_module(module)
    except BaseException as error:  # third-party code may raise anything
        del sys.modules[name]
        if isinstance(error, (MillError, KeyboardInterrupt)):
            raise
        raise SpecError(f"{what} {path} raised {describe(error)}") from error
    _registered[name] = made
