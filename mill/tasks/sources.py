"""Tasks that another package defines, named `SOURCE:NAME`, such as `lm-eval:bbh_cot_fewshot`.

A source is imported when one of its names is used: nothing else of mill knows which packages there are.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from mill.api.errors import MillError
from mill.api.registry import names_of_call
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
    """That of this call, where it names folders."""
    if (own := _own_sources().get(name)) is not None:
        return own
    if name not in _opened:
        _opened[name] = _open(name)
    return _opened[name]


def _open(name: str) -> TaskSource:
    module, _, attribute = _SOURCES[name].partition(":")
    opened: TaskSource = getattr(importlib.import_module(module), attribute)()
    return opened


def _own_sources() -> dict[str, TaskSource]:
    """Those opened for the folders of this call, or of the process where there is none."""
    call = names_of_call()
    return _opened if call is None else call.sources


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
    own = _own_sources()
    if _YAML_FORMAT not in own:
        before = added_folders()
        own[_YAML_FORMAT] = _open(_YAML_FORMAT)
        for folder in before:
            own[_YAML_FORMAT].add_folder(folder)
    return source(_YAML_FORMAT).add_folder(path)


def added_folders() -> tuple[str, ...]:
    """The folders added so far; another process adds the same."""
    known = _own_sources().get(_YAML_FORMAT) or _opened.get(_YAML_FORMAT)
    return tuple(known.folders()) if known is not None else ()


def source_names() -> tuple[str, ...]:
    return tuple(_SOURCES)
