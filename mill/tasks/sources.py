"""Tasks that another package defines, named `SOURCE:NAME`, such as `lm-eval:bbh_cot_fewshot`.

A source is imported when one of its names is used: nothing else of mill knows which packages there are.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from mill.api.errors import MillError
from mill.api.task import Benchmark, Task

_SOURCES = {
    "lm-eval": "mill.bridges.lm_eval.source:LmEvalSource",
    "lmms-eval": "mill.bridges.lmms_eval.source:LmmsEvalSource",
}
_YAML_FORMAT = "lm-eval"  # of the user's own folders

Documents = Sequence[Mapping[str, Any]]


class TaskSource(Protocol):
    """The tasks of a package by their names there."""

    def names(self, pattern: str) -> list[str]:
        """The names that match a pattern; a name without `*` and `?` is itself, and refused where it is not known."""

    def tasks(self, name: str) -> tuple[list[Task], list[Benchmark]]:
        """The tasks of a name, and the groups whose means are reported."""

    def recorded(self, name: str, documents: Mapping[str, Documents]) -> tuple[list[Task], list[Benchmark]]:
        """The same over recorded documents, by task, for scoring them again without the data."""

    def add_folder(self, path: str) -> bool:
        """Add a folder of tasks in the package's own format; False where it has none."""

    def folders(self) -> Sequence[str]:
        """The folders added so far."""

    def listed(self, text: str) -> list[tuple[str, str]]:
        """Names that contain a text, with their kinds."""


_opened: dict[str, TaskSource] = {}


def split_name(name: str) -> tuple[str, str] | None:
    """The source and the name there; None for a task of mill itself."""
    source, colon, inner = name.partition(":")
    return (source, inner) if colon and source in _SOURCES else None


def is_pattern(name: str) -> bool:
    return any(sign in name for sign in "*?")


def source(name: str) -> TaskSource:
    if name not in _opened:
        module, _, attribute = _SOURCES[name].partition(":")
        _opened[name] = getattr(importlib.import_module(module), attribute)()
    return _opened[name]


def names_in_sources(name: str) -> list[str]:
    """The prefixed names of a name that packages here have."""
    found = []
    for prefix in _SOURCES:
        try:
            source(prefix).names(name)
        except MillError:  # not installed, or no such name
            continue
        found.append(f"{prefix}:{name}")
    return found


def add_folder(path: str) -> bool:
    """A folder of YAML tasks, which is the format of lm-eval; False where it has none."""
    return source(_YAML_FORMAT).add_folder(path)


def added_folders() -> tuple[str, ...]:
    """The folders added so far; another process adds the same."""
    return tuple(_opened[_YAML_FORMAT].folders()) if _YAML_FORMAT in _opened else ()


def source_names() -> tuple[str, ...]:
    return tuple(_SOURCES)
