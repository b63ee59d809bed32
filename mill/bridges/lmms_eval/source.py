"""The names `lmms-eval:NAME`: tasks, groups and tags of the installed lmms-eval.

`lmms-eval:NAME@MODEL` has the prompts that lmms-eval keeps for one of its own models, where a task has any.
"""

from __future__ import annotations

import fnmatch
import functools
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mill.api.errors import DataError, UnknownName
from mill.api.task import Benchmark, Task, TaskScores
from mill.bridges.lm_eval.index import (
    GROUP,
    SKIPPED,
    TAG,
    TASK,
    Entries,
    IndexEntry,
    as_list,
    listed,
    named_keys,
    stored_index,
)
from mill.bridges.lm_eval.scoring import LmEvalGroup
from mill.bridges.lmms_eval import library
from mill.bridges.lmms_eval.library import PREFIX
from mill.tasks.load import Documents, TaskSource, is_pattern

CLASS = "python_task"  # lmms-eval's word for a task with a class of its own


def make_index(root: Path) -> Entries:
    entries: Entries = {}
    tags: dict[str, list[str]] = {}
    # In the order of the disk, as lmms-eval reads them: of two files with one name the last counts.
    folders = ((folder, files) for folder, _, files in os.walk(root) if not SKIPPED & set(Path(folder).parts))
    for file in (Path(folder, name) for folder, files in folders for name in files if name.endswith(".yaml")):
        config = named_keys(file)
        group, task = config.get("group"), config.get("task")
        if "class" in config and isinstance(task, str):
            entries[task] = IndexEntry(CLASS, str(file))
        elif isinstance(task, list) and isinstance(group, str):
            entries[group] = IndexEntry(GROUP, str(file), tuple(member for member in task if isinstance(member, str)))
        elif isinstance(task, str):
            entries[task] = IndexEntry(TASK, str(file))
            for tag in (*as_list(config.get("tag")), *as_list(group)):
                tags.setdefault(tag, []).append(task)
    for tag, tasks in tags.items():
        entries.setdefault(tag, IndexEntry(TAG, members=tuple(dict.fromkeys(tasks))))
    return entries


def for_lmms_eval(entries: Entries) -> dict[str, dict[str, Any]]:
    """An index in the form that lmms-eval's TaskManager makes by parsing all files."""
    return {
        name: {
            "type": entry.kind,
            "yaml_path": entry.file or -1,
            **({} if entry.kind in (TASK, CLASS) else {"task": list(entry.members) if entry.kind == TAG else -1}),
        }
        for name, entry in entries.items()
    }


@dataclass(frozen=True)
class LmmsEvalGroup(LmEvalGroup):
    """`members` are the nested dictionaries of lmms-eval, whose groups do not know their members."""

    members: Mapping[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    suffix: str = ""

    def aggregated(self, table: Mapping[str, dict[str, Any]]) -> Mapping[str, Any]:
        from lmms_eval.evaluator_utils import consolidate_group_results

        results: Any = defaultdict(dict, table)
        consolidate_group_results(results, defaultdict(lambda: None), self.members)
        means: Mapping[str, Any] = results[self.group.group_name]
        return means

    def aggregate(self, scores: TaskScores) -> dict[str, tuple[float, float | None]]:
        return super().aggregate({name.removesuffix(self.suffix): metrics for name, metrics in scores.items()})


_HINT = f"see `mill ls tasks {PREFIX}`"
_FOR_MODELS = ("lmms_eval_specific_kwargs", "model_specific_generation_kwargs", "model_specific_target_kwargs")
_NOT_MODELS = ("default", "dataset")


class LmmsEvalSource(TaskSource):
    def __init__(self) -> None:
        self._made: dict[str, tuple[list[Task], list[Benchmark]]] = {}

    @functools.cached_property
    def index(self) -> Entries:
        return stored_index("lmms-eval", library.tasks_folder(), library.version(), make_index)

    def names(self, pattern: str) -> list[str]:
        known, (inner, at, model) = self.index, pattern.partition("@")
        if not is_pattern(inner):
            if inner not in known:
                raise UnknownName("task of lmms-eval", inner, known, _HINT)
            return [pattern]
        found = sorted(fnmatch.filter(known, inner))
        if not found:
            raise DataError(f"no task of lmms-eval matches {inner!r}; {_HINT}")
        return [name + at + model for name in found]

    def tasks(self, name: str) -> tuple[list[Task], list[Benchmark]]:
        if name not in self._made:
            self._made[name] = self._load(name)
        return self._made[name]

    def recorded(self, name: str, documents: Mapping[str, Documents]) -> tuple[list[Task], list[Benchmark]]:
        """Scoring again needs the data here: what is recorded of a document are the digests of its media."""
        return self.tasks(name)

    def _load(self, name: str) -> tuple[list[Task], list[Benchmark]]:
        inner, at, model = name.partition("@")
        judged: dict[str, bool] = {}
        models: dict[str, None] = {}
        with library.running(f"{PREFIX}{name} cannot be loaded"):
            from mill.bridges.lmms_eval.judge import replaced_clients
            from mill.bridges.lmms_eval.refusals import needs_judge, refuse
            from mill.bridges.lmms_eval.task import make_task

            def check(task: str, config: Mapping[str, Any]) -> None:
                refuse(task, config)
                judged[task] = needs_judge(config)
                models.update(dict.fromkeys(_models_of(config)))

            with replaced_clients():
                found, nested = library.load(inner, for_lmms_eval(self.index), model or None, check)
            if at and model not in models:
                has = f"prompts for {', '.join(sorted(models))}" if models else "the same prompt for all models"
                raise DataError(f"{PREFIX}{name}: no prompts for the model {model!r}; it has {has}")
            tasks: list[Task] = [
                make_task(PREFIX + task + at + model, made, judged.get(task, False)) for task, made in found.tasks.items()
            ]
        groups: list[Benchmark] = [
            LmmsEvalGroup(
                PREFIX + group + at + model,
                tuple(PREFIX + member + at + model for member in found.members[group]),
                group=made,
                members=nested.get(group, {}),
                prefix=PREFIX,
                suffix=at + model,
            )
            for group, made in found.groups.items()
        ]
        return tasks, groups

    def listed(self, text: str) -> list[tuple[str, str]]:
        return [(PREFIX + name, kind.replace(CLASS, "task")) for name, kind in listed(self.index, text)]


def _models_of(config: Mapping[str, Any]) -> list[str]:
    """The models of lmms-eval for which a task has prompts or options of its own."""
    tables = [config.get(key) for key in _FOR_MODELS]
    found = [
        name for table in tables if isinstance(table, Mapping) for name, value in table.items() if isinstance(value, Mapping)
    ]
    return [name for name in found if name not in _NOT_MODELS]
