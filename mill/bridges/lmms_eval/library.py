"""The installed lmms-eval: where it is, and its tasks and groups. Only its task package is imported."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mill.api.errors import DataError, MillError, install_command
from mill.bridges.lm_eval.data import local_first
from mill.bridges.lm_eval.library import quiet as quiet_logging
from mill.bridges.lm_eval.library import random_numbers
from mill.bridges.lm_eval.problems import one_line
from mill.bridges.lmms_eval.audio import decode_with_soundfile

PREFIX = "lmms-eval:"
OLDEST = (0, 7)
_INSTALL = f"{install_command('lmms-eval')} && pip install --no-deps lmms-eval==0.7.3"
_NO_KEY = "none"  # some task files refuse to be imported without an OPENAI_API_KEY


def tasks_folder() -> Path:
    """The folder of lmms-eval's YAML files, found without importing it."""
    spec = importlib.util.find_spec("lmms_eval")
    if spec is None or spec.origin is None:
        raise MillError(f"a task {PREFIX}NAME needs the package lmms_eval: {_INSTALL}")
    return Path(spec.origin).parent / "tasks"


@functools.cache
def version() -> str:
    found = importlib.metadata.version("lmms_eval")
    if tuple(int(part) for part in found.split(".")[:2] if part.isdigit()) < OLDEST:
        raise MillError(f"lmms_eval {found} is installed: the oldest version that mill supports is 0.7")
    return found


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No output of lmms-eval: it writes through loguru, beside what other packages write through logging."""
    with quiet_logging():
        try:
            from loguru import logger
        except ModuleNotFoundError:
            yield
            return
        logger.disable("")
        try:
            yield
        finally:
            logger.enable("")


@contextlib.contextmanager
def running(what: str) -> Iterator[None]:
    """lmms-eval's code runs here with local data first, without its output, and with one line for each failure."""
    with one_line(what), quiet(), local_first(), environment():
        yield


@contextlib.contextmanager
def environment() -> Iterator[None]:
    """What task files expect in the environment: some are not imported, or score nothing, without a key."""
    from huggingface_hub.constants import HF_HOME

    given = {"HF_HOME": HF_HOME, "OPENAI_API_KEY": _NO_KEY}
    added = {name: value for name, value in given.items() if not os.environ.get(name)}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@dataclass
class LoadedTasks:
    """Tasks of lmms-eval by name, and its groups with the names of their direct members."""

    tasks: dict[str, Any] = field(default_factory=dict)
    groups: dict[str, Any] = field(default_factory=dict)
    members: dict[str, list[str]] = field(default_factory=dict)
    nested: dict[str, Any] = field(default_factory=dict)
    """The part of lmms-eval's nested dictionaries that is a group."""


def load(
    name: str,
    index: Mapping[str, dict[str, Any]],
    model_name: str | None,
    check: Callable[[str, Mapping[str, Any]], None],
) -> LoadedTasks:
    """A task, group or tag. `model_name` selects prompts that lmms-eval has for one of its models; `check` gets the
    configuration of each task before its data are loaded: first without its functions, which takes no import, then with
    them."""
    from lmms_eval.tasks import TaskManager
    from lmms_eval.utils import load_yaml_config

    class Manager(TaskManager):  # type: ignore[misc]
        """lmms-eval's own, with the index that is there already."""

        def initialize_tasks(self, *given: Any, **options: Any) -> dict[str, dict[str, Any]]:
            return dict(index)

        def _get_config(self, inner: str) -> Any:
            path = self._get_yaml_path(inner)
            if path != -1:
                _check(inner, load_yaml_config(path, mode="simple"))  # before the task's own code is imported
            config = super()._get_config(inner)
            _check(inner, config)
            return config

    def _check(inner: str, config: Mapping[str, Any]) -> None:
        if isinstance(config.get("task"), str):
            check(inner, config)

    decode_with_soundfile()
    with _once_only(), random_numbers():
        manager = Manager(include_defaults=False, model_name=model_name)
        loaded = _from_nested(manager.load_task_or_group([name]))
    if not loaded.tasks:
        raise DataError(f"{PREFIX}{name} has no tasks")
    return loaded


def _from_nested(nested: Mapping[Any, Any]) -> LoadedTasks:
    """Groups are keys of lmms-eval's dictionaries, their members values."""
    loaded = LoadedTasks()
    for key, value in nested.items():
        if not isinstance(value, Mapping):
            loaded.tasks[str(key)] = value
            continue
        inner = _from_nested(value)
        loaded.tasks |= inner.tasks
        loaded.groups |= {key.group_name: key, **inner.groups}
        loaded.members |= {key.group_name: [str(getattr(one, "group_name", one)) for one in value], **inner.members}
        loaded.nested |= {key.group_name: {key: value}, **inner.nested}
    return loaded


@contextlib.contextmanager
def _once_only() -> Iterator[None]:
    """lmms-eval tries a download five times and hides why it failed; `datasets` has tried again by itself already."""
    from lmms_eval.api.task import ConfigurableTask

    original = ConfigurableTask.download
    ConfigurableTask.download = original.__wrapped__
    try:
        yield
    finally:
        ConfigurableTask.download = original
