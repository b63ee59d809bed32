"""The installed lm-evaluation-harness: where it is, and its tasks and groups in one form for all supported versions."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import io
import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mill.api.batching import describe
from mill.api.errors import DataError, MillError, MissingPackage

OLDEST = (0, 4, 10)
FEWSHOT_SEED = 1234  # of a bare `lm_eval` command, as are the seeds of the generators
_RANDOM_SEED, _OTHER_SEED = 0, 1234


def tasks_folder() -> Path:
    """The folder of lm-eval's YAML files, found without importing it."""
    spec = importlib.util.find_spec("lm_eval")
    if spec is None or spec.origin is None:
        raise MissingPackage("a task lm-eval:NAME", "lm_eval", "lm-eval")
    return Path(spec.origin).parent / "tasks"


@functools.cache
def version() -> str:
    found = importlib.metadata.version("lm_eval")
    numbers = tuple(int(part) for part in found.split(".")[:3] if part.isdigit())
    if numbers < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise MillError(f"lm_eval {found} is installed: the oldest version that mill supports is {oldest}")
    return found


@dataclass
class Loaded:
    """Tasks of lm-eval by name, and its groups with the names of their direct members."""

    tasks: dict[str, Any] = field(default_factory=dict)
    groups: dict[str, Any] = field(default_factory=dict)
    members: dict[str, list[str]] = field(default_factory=dict)
    nested: dict[str, Any] = field(default_factory=dict)
    """Before 0.4.12: the part of lm-eval's nested dictionaries that is a group."""


def load(name: str, folders: Sequence[Path], metadata: Mapping[str, Any]) -> Loaded:
    """A task, group or tag, from these folders alone."""
    with quiet():
        from lm_eval.tasks import TaskManager

        paths = [str(folder) for folder in folders]
        manager = TaskManager(include_path=paths, include_defaults=False, metadata=dict(metadata))
        seed_generators()
        if hasattr(manager, "load"):
            found = manager.load([name])
            return Loaded(found["tasks"], found.get("groups", {}), dict(found.get("group_map", {})))
        return _from_nested(manager.load_task_or_group([name]))


def _from_nested(nested: Mapping[Any, Any]) -> Loaded:
    """The nested dictionaries of versions before 0.4.12: groups are keys, their members values."""
    loaded = Loaded()
    for key, value in nested.items():
        if isinstance(value, Mapping):
            inner = _from_nested(value)
            loaded.tasks |= inner.tasks
            loaded.groups |= {key.group_name: key, **inner.groups}
            loaded.members |= {
                key.group_name: [str(getattr(member, "group_name", member)) for member in value],
                **inner.members,
            }
            loaded.nested |= {key.group_name: {key: value}, **inner.nested}
        else:
            loaded.tasks[key] = value[1] if isinstance(value, tuple) else value
    return loaded


def seed_generators() -> None:
    """As lm-eval's evaluator does before it loads tasks: some of them shuffle their documents."""
    import numpy as np

    random.seed(_RANDOM_SEED)
    np.random.seed(_OTHER_SEED)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No progress bars, printed lines or log records of lm-eval, and no hub's progress bars."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        previous = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(previous)


@contextlib.contextmanager
def one_line(what: str) -> Iterator[None]:
    """Whatever lm-eval or a task's own code raises becomes one line."""
    try:
        yield
    except (MillError, KeyboardInterrupt):
        raise
    except ModuleNotFoundError as error:
        raise DataError(f"{what} needs the package {error.name}: pip install {error.name}") from error
    except BaseException as error:  # third-party code may raise anything
        raise DataError(f"{what}: {describe(error)}") from error
