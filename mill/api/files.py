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

_imported: dict[str, str] = {}
_digests: dict[str, str] = {}
_lock = threading.RLock()  # a file may import others


class _SourceLoader(importlib.machinery.SourceFileLoader):
    """Compiles the file as it is now: stored byte code is found by size and second, so it may miss an edit."""

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
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
    """Every file imported so far, in order; a worker process imports the same."""
    return tuple(path for name, path in _imported.items() if name in sys.modules)


def source_digest(module: str) -> str | None:
    """The digest of a file's content when it was imported under this name; None for other modules."""
    return _digests.get(module)


def import_file(path: str | Path, what: str) -> ModuleType:
    """Import a file once, under a module name derived from its path; an exception becomes one line that names the file."""
    check_path(str(path))
    path = Path(path).expanduser()
    if not path.is_file():
        raise SpecError(f"{what} {path} does not exist")
    name = f"mill_file_{path.stem}_{hashlib.blake2b(str(path.resolve()).encode(), digest_size=4).hexdigest()}"
    if path.suffix != ".py":
        raise SpecError(f"{what} {path} is not a Python file")
    with _lock:  # another thread may be importing the same file
        return sys.modules[name] if name in sys.modules else _execute(path, name, what)


def _execute(path: Path, name: str, what: str) -> ModuleType:
    loader = _SourceLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None  # a loader was given
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _digests[name] = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    try:
        loader.exec_module(module)
    except BaseException as error:  # third-party code may raise anything
        del sys.modules[name]
        if isinstance(error, (MillError, KeyboardInterrupt)):
            raise
        raise SpecError(f"{what} {path} raised {describe(error)}") from error
    _imported[name] = str(path.resolve())
    return module
