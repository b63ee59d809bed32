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
from mill.bridges.lm_eval.listed import LmEvalQuestions, why_not_listed
from mill.bridges.lm_eval.recorded import recorded_documents
from mill.bridges.lm_eval.task import PREFIX, LmEvalTask, loading, task_in_errors
from mill.tasks.generated_choice import GeneratedChoiceTask, generated_benchmark
from mill.tasks.multiple_choice import GENERATED
from mill.tasks.sources import Documents, is_pattern


class LmEvalSource:
    """Tasks of lm-eval, and those of the user's own folders (`--include_path`), which replace those of the same name.

    `NAME_gen`, where lm-eval has no such name, is NAME by the generated letter.
    """

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

    def _plain_name(self, name: str) -> str | None:
        """The name of what a name renders by letter; None for a name of lm-eval's own and for unknown ones."""
        plain = name.removesuffix(GENERATED)
        return plain if plain != name and self._entry(name) is None and self._entry(plain) is not None else None

    def _entries(self) -> dict[str, IndexEntry]:
        return {**self.index.entries, **self._own}

    def folders_of(self, name: str) -> list[Path]:
        return folders_of(name, self._entry)

    def names(self, pattern: str) -> list[str]:
        if not is_pattern(pattern):
            if self._entry(pattern) is None and self._plain_name(pattern) is None:
                raise UnknownName("task of lm-eval", pattern, self._entries(), "see `mill ls tasks lm-eval:`")
            return [pattern]
        known = self._entries()
        found = sorted(fnmatch.filter(known, pattern))
        if not found and pattern.endswith(GENERATED):
            found = [name + GENERATED for name in sorted(fnmatch.filter(known, pattern.removesuffix(GENERATED)))]
        if not found:
            raise DataError(f"no task of lm-eval matches {pattern!r}; see `mill ls tasks lm-eval:`")
        return found

    def tasks(self, name: str) -> tuple[list[Task], list[Benchmark]]:
        if name not in self._made:
            self._made[name] = self._load(name)
        return self._made[name]

    def recorded(self, name: str, documents: Mapping[str, Documents]) -> tuple[list[Task], list[Benchmark]]:
        by_letter = self._plain_name(name) is not None
        if self._entry(name) is None and not by_letter:
            raise DataError(f"{PREFIX}{name} is not known here: --include_path DIR names the folder of its YAML file")
        inner = {task.removeprefix(PREFIX): docs for task, docs in documents.items()}
        if by_letter:
            inner = {task.removesuffix(GENERATED): docs for task, docs in inner.items() if task.endswith(GENERATED)}
        with recorded_documents(inner):
            return self._load(name)

    def _load(self, name: str) -> tuple[list[Task], list[Benchmark]]:
        plain = self._plain_name(name)
        if plain is None:
            tasks, groups = self._load_plain(name)
            return list(tasks), groups
        tasks, groups = self._load_plain(plain)
        return [_by_letter(task) for task in tasks], [generated_benchmark(group) for group in groups]

    def _load_plain(self, name: str) -> tuple[list[LmEvalTask], list[Benchmark]]:
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
        tasks = [LmEvalTask(PREFIX + inner, task, found.random_state) for inner, task in found.tasks.items()]
        for inner, task in zip(found.tasks, tasks, strict=True):
            if self._entry(inner + GENERATED) is None and not why_not_listed(task):
                task.by_letter = task.name + GENERATED
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


def _by_letter(task: LmEvalTask) -> Task:
    rendered = GeneratedChoiceTask(task.name + GENERATED, LmEvalQuestions(task))
    rendered.version = task.version
    return rendered
