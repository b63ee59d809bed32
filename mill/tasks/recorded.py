"""The tasks and benchmarks of a run that is scored again, without its data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mill.api.errors import MillError
from mill.api.registry import tasks
from mill.api.task import Benchmark, RenderSettings, Task
from mill.api.warnings import warn
from mill.tasks import hooks
from mill.tasks.load import make_task
from mill.tasks.sources import Documents, source, split_name


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
