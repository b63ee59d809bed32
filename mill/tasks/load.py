"""From names to tasks: built-in tasks, benchmarks, patterns, data files, custom task files, tasks of a recorded run.

Tasks that another package defines are named `SOURCE:NAME`, such as `lm-eval:bbh_cot_fewshot`. A source is imported when one
of its names is used: nothing else of mill knows which packages there are.
"""

from __future__ import annotations

import fnmatch
import importlib
import pkgutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import mill.tasks
from mill.api.errors import CannotServe, DataError, MillError, SpecError
from mill.api.model import ModelCapabilities
from mill.api.registry import import_file, names_of_call, tasks
from mill.api.task import Benchmark, RenderSettings, Task
from mill.support.files import check_path, is_file
from mill.support.terminal import describe, warn
from mill.tasks import hooks
from mill.tasks.data_file import SUFFIXES, file_task, is_data_file
from mill.tasks.hooks import check_attributes
from mill.tasks.multiple_choice import GENERATED, is_generated

SOURCES = {
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
        return False

    def folders(self) -> Sequence[str]:
        """The folders added so far."""
        return ()

    def listed(self, text: str) -> list[tuple[str, str]]:
        """Names that contain a text, with their kinds."""


_opened: dict[str, TaskSource] = {}


def split_name(name: str) -> tuple[str, str] | None:
    """The source and the name there; None for a task of mill itself."""
    source, colon, inner = name.partition(":")
    return (source, inner) if colon and source in SOURCES else None


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
    module, _, attribute = SOURCES[name].partition(":")
    opened: TaskSource = getattr(importlib.import_module(module), attribute)()
    return opened


def _own_sources() -> dict[str, TaskSource]:
    """Those opened for the folders of this call, or of the process where there is none."""
    call = names_of_call()
    return _opened if call is None else call.sources


def names_in_sources(name: str) -> list[str]:
    """The prefixed names of a name that packages here have."""
    found = []
    for prefix in SOURCES:
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


def expand_task_files(names: Iterable[str]) -> list[str]:
    """The same names, with every Python file replaced by the tasks that it registers."""
    expanded: list[str] = []
    for name in names:
        if not name.endswith(".py") or name in tasks:
            expanded.append(name)
            continue
        registered = tasks.defined_in(import_file(name, "task file").__name__)
        if not registered:
            raise DataError(f"the task file {name} registers no task: add @register_task(...)")
        expanded += registered
    return expanded


_OTHER_DATA = (".json", ".tsv", ".xlsx", ".arrow", ".gz", ".CSV", ".JSONL")


@dataclass(frozen=True)
class Selection:
    """The tasks to run and the benchmarks whose means are reported, in the order given."""

    tasks: tuple[Task, ...]
    benchmarks: tuple[Benchmark, ...]

    def __post_init__(self) -> None:
        """Samples, results and comparisons are stored by the task's name."""
        for name, count in Counter(task.name for task in self.tasks).items():
            if count > 1:
                raise SpecError(f"{count} tasks are called {name!r}, and results are stored by name: rename all but one")


def load_builtin() -> None:
    """Import every module of this package: each registers its tasks. They are light."""
    for module in pkgutil.iter_modules(mill.tasks.__path__):
        importlib.import_module(f"mill.tasks.{module.name}")


def load_files(paths: tuple[str, ...]) -> None:
    """Import Python files, or all those in a folder, that register tasks or backends. In a folder with YAML tasks, which are
    in lm-eval's format, the Python files are theirs."""
    for path in paths:
        check_path(path)
        if Path(path).is_dir() and next(Path(path).rglob("*.yaml"), None) is not None and add_folder(path):
            continue
        files = sorted(filter(Path.is_file, Path(path).glob("*.py"))) if Path(path).is_dir() else [Path(path)]
        if not files:
            raise DataError(f"task folder {path} has neither Python files nor YAML tasks")
        for file in files:
            import_file(file, "task file")


def _hint(name: str) -> str:
    """What to do about an unknown name: that of a file or a folder was meant as data, another package may have it."""
    if name in tasks:
        return ""
    try:
        exists = Path(name).exists()
    except (OSError, ValueError):  # no name that a file can have
        exists = False
    if name.endswith((".yaml", ".yml")):
        return "--include_path DIR takes a folder of YAML tasks in lm-eval's format, and `lm-eval:NAME` runs one"
    if exists or name.endswith(_OTHER_DATA):
        return f"data files end in {', '.join(SUFFIXES)}"
    if found := names_in_sources(name):
        return f"{' and '.join(found)} {'is' if len(found) == 1 else 'are'} known"
    return "see `mill ls tasks`"


def make_task(name: str) -> Task:
    """One task by name. A name that belongs to a benchmark is refused here."""
    if (named := split_name(name)) is not None:
        made, _ = source(named[0]).tasks(*source(named[0]).names(named[1]))
        if [task.name for task in made] != [name]:
            raise MillError(f"{name} is a benchmark of several tasks, not a task")
        return made[0]
    if is_data_file(name) and name not in tasks:
        return file_task(name)
    made = tasks.get(name, hint=_hint(name))
    if isinstance(made, Benchmark):
        raise MillError(f"{name} is a benchmark of several tasks, not a task")
    try:
        task = made(name)
    except (MillError, KeyboardInterrupt):
        raise
    except BaseException as error:  # third-party code may raise anything
        raise MillError(f"the task {name} cannot be made: {describe(error)}") from error
    if not isinstance(task, Task):
        raise MillError(f"the task {name} is registered as {made!r}, which does not make a Task")
    check_attributes(task)
    return task


def select(names: list[str]) -> Selection:
    """Tasks and benchmarks by name or pattern (`mmlu_high_school_*`), each once."""
    selected: dict[str, Task] = {}
    benchmarks: dict[str, Benchmark] = {}

    def add(name: str, within: tuple[str, ...] = ()) -> None:
        if name in within:
            raise MillError(f"the benchmark {name} contains itself: {' > '.join((*within, name))}")
        if (named := split_name(name)) is not None:
            known = source(named[0])
            for made, means in map(known.tasks, known.names(named[1])):
                selected.update({task.name: task for task in made if task.name not in selected})
                benchmarks.update({mean.name: mean for mean in means if mean.name not in benchmarks})
            return
        entry = tasks.get(name, hint=_hint(name)) if not is_data_file(name) else None
        if isinstance(entry, Benchmark):
            benchmarks.setdefault(name, entry)
            for member in entry.tasks:
                add(member, (*within, name))
        elif name not in selected:
            selected[name] = make_task(name)

    for name in names:
        matching = [name]
        is_name = (is_data_file(name) and is_file(name)) or split_name(name) is not None  # a data file may be called *.csv
        if is_pattern(name) and not is_name:
            # Renderings by letter are other questions: they match only where the pattern names them.
            named = fnmatch.filter(tasks.names(), name)
            matching = [task for task in named if GENERATED in name or not is_generated(task)]
        if not matching:
            hint = "patterns are for tasks, so name each file" if is_data_file(name) else "see `mill ls tasks`"
            raise DataError(f"no task matches {name!r}; {hint}")
        for match in matching:
            add(match)
    return Selection(tuple(selected.values()), tuple(benchmarks.values()))


def renderings(task: Task) -> list[Task]:
    """The task itself and the other forms in which it can run, in order of preference."""
    return [task, *(make_task(name) for name in task.alternatives)]


def letter_rendering(task: Task, selection: Selection) -> str:
    """The name of a task's rendering by letter, or that of the largest benchmark of the selection that the task is part of;
    empty where there is none."""
    if not task.by_letter:
        return ""
    members = {benchmark.name: set(benchmark.tasks) for benchmark in selection.benchmarks}
    within = task.name
    while outer := next((name for name, inner in members.items() if within in inner and _is_known(name + GENERATED)), ""):
        within = outer
        del members[outer]
    return within + GENERATED


def _is_known(name: str) -> bool:
    return name in tasks or split_name(name) is not None


def serve(task: Task, capabilities: ModelCapabilities, who: str, can: str) -> Task:
    """The task, or the first of its other renderings, that a model can serve; refused with what would work instead.

    `who` names the model and `can` the backends that would serve the task as it is.
    """
    for candidate in renderings(task):
        if all(map(capabilities.serves, candidate.kinds)) and candidate.modalities <= capabilities.modalities:
            return candidate
    missing = sorted(task.modalities - capabilities.modalities)
    if missing:
        raise CannotServe(
            f"{task.name} needs a model that takes {', '.join(missing)}; {who} takes "
            f"{', '.join(sorted(capabilities.modalities))}; {can}"
        )
    kinds = " and ".join(sorted(kind for kind in task.kinds if not capabilities.serves(kind)))
    what = f"{task.name} ({task.task_type.value}) is scored by {kinds} requests"
    raise CannotServe(f"{what}, which {who} does not answer; {can}")


def recorded_task(name: str, documents: Mapping[str, Documents], settings: RenderSettings) -> Task:
    """A task by name, with the settings of its run. One of another package is made over the recorded documents, since it
    loads data when it is made."""
    named = split_name(name)
    if named is None:
        task = make_task(name)
    else:
        (task,), _ = source(named[0]).recorded(named[1], documents)
    hooks.call(task, "configure()", lambda: task.configure(settings))
    return task


def recorded_benchmarks(names: Iterable[str], documents: Mapping[str, Documents]) -> list[Benchmark]:
    """Those of these benchmarks that are known here."""
    found = []
    for name in names:
        named = split_name(name)
        if named is None:
            entry = tasks.get(name) if name in tasks else None
            found += [entry] if isinstance(entry, Benchmark) else []
            continue
        try:
            found += [one for one in source(named[0]).recorded(named[1], documents)[1] if one.name == name]
        except MillError as error:
            warn(f"the mean of {name} stays as it was: {error}")
    return found
