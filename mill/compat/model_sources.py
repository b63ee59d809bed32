"""Importing transformers, which reads the sources of all its models twice to find what each of them exports."""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

READER = "transformers.utils.import_utils"
EXPORTS = "__all__"


@contextlib.contextmanager
def quick_model_sources() -> Iterator[None]:
    """Inside this context each source is read once, and parsed from the line that names its exports. The result is the
    same."""
    if READER in sys.modules:
        yield
        return
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for module, name, original in finder.replaced:
            setattr(module, name, original)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the module that reads sources, and replaces its functions as soon as it is imported: transformers itself is
    not imported by then, and calls them."""

    def __init__(self) -> None:
        self.replaced: list[tuple[ModuleType, str, Any]] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != READER:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            loader, execute = spec.loader, spec.loader.exec_module

            def execute_and_replace(module: ModuleType) -> None:
                del loader.exec_module
                execute(module)
                self._replace(module)

            loader.exec_module = execute_and_replace  # type: ignore[method-assign]
        return spec

    def _replace(self, module: ModuleType) -> None:
        quick: dict[str, Callable[..., Any]] = {"fetch__all__": exports_of_end, "define_import_structure": of_folder}
        for name in quick.keys() & module.__dict__.keys():
            original = module.__dict__[name]
            self.replaced.append((module, name, original))
            setattr(module, name, functools.partial(quick[name], original))


def exports_of_end(original: Callable[[str], list[str]], source: str) -> list[str]:
    """The exports of a source, which are in its last lines."""
    start = source.rfind(f"\n{EXPORTS}") + 1
    return original(source[start:]) if start or source.startswith(EXPORTS) else []


def of_folder(original: Callable[..., Any], path: Any, *others: Any, **named: Any) -> Any:
    """The exports of a folder, given as its path or as a file in it: a function inside remembers them by path."""
    folder = Path(path)
    return original(str(folder.parent if folder.is_file() else folder), *others, **named)
