"""The names `lm-eval:NAME`: tasks, groups and tags of the installed lm-evaluation-harness."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

from yaml import YAMLError

from mill.api.errors import DataError, UnknownName
from mill.api.task import Benchmark, Task
from mill.api.warnings import warn
from mill.bridges.lm_eval import library
from mill.bridges.lm_eval.group import LmEvalGroup
from mill.bridges.lm_eval.index import (
    IndexEntry,
    TaskIndex,
    broken,
    folders_of,
    listed,
    make_index,
    named_keys,
    stored_index,
    yaml_files,
)
from mill.bridges.lm_eval.recorded import recorded_documents
from mill.bridges.lm_eval.task import PREFIX, LmEvalTask, loading, task_in_errors
from mill.tasks.sources import Documents, is_pattern


class LmEvalSource:
    """Tasks of lm-eval, and those of the user's own folders (`--include_path`), which replace those of the same name."""

    def __init__(self) -> None:
        self._folders: list[str] = []
        self._own: dict[str, IndexEntry] = {}
        self._made: dict[str, tuple[list[Task], list[Benchmark]]] = {}

    @functools.cached_property
    def index(self) -> TaskIndex:
        """Of lm-eval's own tasks; not read where the user's folders have all names."""
        return stored_index(library.tasks_folder(), library.version())

    def add_folder(self, path: str) -> bool:
        if path in self._folders:
            return True
        found = make_index([Path(path)])
        broken_files = [problem for file in yaml_files(Path(path)) for problem in broken(file)]
        for problem in dict.fromkeys([*found.problems, *broken_files]):
            warn(f"a task file is left out: {problem}")
        if found.entries:
            self._folders.append(path)
            self._own.update(found.entries)
        return bool(found.entries)

    def folders(self) -> Sequence[str]:
        return self._folders

    def _entry(self, name: str) -> IndexEntry | None:
        return self._own.get(name) or self.index.entries.get(name)

    def _entries(self) -> dict[str, IndexEntry]:
        return {**self.index.entries, **self._own}

    def folders_of(self, name: str) -> list[Path]:
        return folders_of(name, self._entry)

    def names(self, pattern: str) -> list[str]:
        if not is_pattern(pattern):
            if self._entry(pattern) is None:
                raise UnknownName("task of lm-eval", pattern, self._entries(), "see `mill ls tasks lm-eval:`")
            return [pattern]
        known = self._entries()
        found = sorted(fnmatch.filter(known, pattern))
        if not found:
            raise DataError(f"no task of lm-eval matches {pattern!r}; see `mill ls tasks lm-eval:`")
        return found

    def tasks(self, name: str) -> tuple[list[Task], list[Benchmark]]:
        if name not in self._made:
            self._made[name] = self._load(name)
        return self._made[name]

    def recorded(self, name: str, documents: Mapping[str, Documents]) -> tuple[list[Task], list[Benchmark]]:
        if self._entry(name) is None:
            raise DataError(f"{PREFIX}{name} is not known here: --include_path DIR names the folder of its YAML file")
        with recorded_documents({task.removeprefix(PREFIX): docs for task, docs in documents.items()}):
            return self._load(name)

    def _load(self, name: str) -> tuple[list[Task], list[Benchmark]]:
        folders = self.folders_of(name)
        own = f" from {folders[0]}" if name in self._own and folders else ""
        what = f"{PREFIX}{name}{own} cannot be loaded"
        try:
            with loading(what), task_in_errors():
                found = library.load(name, folders)
        except DataError as error:
            every = isinstance(error.__cause__, YAMLError)  # before 0.4.12 one file spoils its folder
            reason = self._broken_file(name, folders, every=every)
            if reason:
                raise DataError(f"{what}: {reason}") from None
            raise
        if not found.tasks:
            raise DataError(f"{PREFIX}{name} has no tasks")
        tasks: list[Task] = [LmEvalTask(PREFIX + inner, task, found.random_state) for inner, task in found.tasks.items()]
        groups: list[Benchmark] = [
            LmEvalGroup(
                PREFIX + inner,
                tuple(PREFIX + member for member in found.members[inner]),
                group=group,
                members=found.nested.get(inner, {}),
                prefix=PREFIX,
            )
            for inner, group in found.groups.items()
        ]
        return tasks, groups

    def _broken_file(self, name: str, folders: Sequence[Path], *, every: bool) -> str:
        """Why a file of this name, or of what is in it, does not parse: lm-eval leaves it out, and then lacks it. Or `every`
        file of the folders."""
        entry = self._entry(name)
        wanted = {name, *(entry.members if entry is not None else ())}
        for file in (file for folder in folders for file in yaml_files(folder)):
            problems = broken(file)
            if problems and (every or wanted & set(map(str, named_keys(file).values()))):
                return problems[0]
        return ""

    def listed(self, text: str) -> list[tuple[str, str]]:
        return [(PREFIX + name, kind) for name, kind in listed(self._entries(), text)]
