"""The installed lm-evaluation-harness: where it is, its tasks and groups, and their data."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import importlib.util
import inspect
import io
import logging
import random
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mill.api.errors import DataError, MillError, MissingPackage, SpecError
from mill.compat import reachable_hub, replaced
from mill.support.terminal import describe
from mill.tasks.data import folders_on_search_path, read_rows, splits_in

_NLTK = re.compile(r"nltk\.download\(['\"]([\w.-]+)['\"]\)")


@contextlib.contextmanager
def one_line(what: str) -> Iterator[None]:
    """An exception of lm-eval or of a task's own code becomes one line."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except MillError as error:
        if type(error) not in (DataError, SpecError):
            raise
        raise type(error)(f"{what}: {error}") from error
    except BaseException as error:  # third-party code may raise anything
        raise DataError(f"{what}: {missing_part(error) or describe(error) + _where(error)}") from error


def _where(error: BaseException) -> str:
    """The line of a task's own code, which is beside its YAML file, that the error comes from: some messages say little."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_file() and next(file.parent.glob("*.yaml"), None) is not None:
            return f" ({file.name}, line {frame.lineno})"
    return ""


def missing_part(error: BaseException) -> str | None:
    """What is wrong with the task or to be installed, where the error does not say it itself."""
    if isinstance(error, RecursionError):
        return "it contains itself, or its code calls itself without end"
    if isinstance(error, ModuleNotFoundError) and not error.name:  # raised by a task, which says more
        return f"it needs a package: {describe(error)}"
    if isinstance(error, ModuleNotFoundError):
        return f"it needs the package {error.name}: pip install {error.name}"
    resource = _NLTK.search(str(error)) if isinstance(error, LookupError) else None
    return f"it needs data of nltk: python -m nltk.downloader {resource[1]}" if resource else None


FEWSHOT_SEED = 1234  # of a bare `lm_eval` command, as are the seeds of the generators
_RANDOM_SEED, _OTHER_SEED = 0, 1234


def tasks_folder() -> Path:
    """The folder of lm-eval's YAML files, found without importing it."""
    spec = importlib.util.find_spec("lm_eval")
    if spec is None or spec.origin is None:
        raise MissingPackage("a task lm-eval:NAME", "lm_eval", "lm-eval")
    return Path(spec.origin).parent / "tasks"


@functools.cache
def version(package: str = "lm_eval", oldest: tuple[int, ...] = (0, 4, 12)) -> str:
    found = importlib.metadata.version(package)
    if tuple(int(part) for part in found.split(".")[:3] if part.isdigit()) < oldest:
        supported = ".".join(map(str, oldest))
        raise MillError(f"{package} {found} is installed: the oldest version that mill supports is {supported}")
    return found


@dataclass
class Loaded:
    """Tasks of lm-eval by name, and its groups with the names of their direct members."""

    tasks: dict[str, Any] = field(default_factory=dict)
    groups: dict[str, Any] = field(default_factory=dict)
    members: dict[str, list[str]] = field(default_factory=dict)
    random_state: Any = None
    """Of the generators once everything was loaded."""


def load(name: str, folders: Sequence[Path]) -> Loaded:
    """A task, group or tag, from these folders alone."""
    logging.getLogger("lm_eval").setLevel(logging.CRITICAL)  # its calls for single samples are only silent
    with quiet():
        from lm_eval.tasks import TaskManager

        paths = [str(folder) for folder in folders]
        manager = TaskManager(include_path=paths, include_defaults=False)
        with random_numbers():
            found = manager.load([name])
            return Loaded(found["tasks"], found.get("groups", {}), dict(found.get("group_map", {})), random_state())


@contextlib.contextmanager
def random_numbers(state: Any = None) -> Iterator[None]:
    """The generators as lm-eval's evaluator seeds them before it loads tasks, or at a `state` that they had then: some tasks
    shuffle their documents. The process's own state comes back."""
    import numpy as np

    def restore(saved: Any) -> None:
        random.setstate(saved[0])
        np.random.set_state(saved[1])

    before = random_state()
    if state is None:
        random.seed(_RANDOM_SEED)
        np.random.seed(_OTHER_SEED)
    else:
        restore(state)
    try:
        yield
    finally:
        restore(before)


def random_state() -> Any:
    import numpy as np

    return random.getstate(), np.random.get_state()


@functools.cache
def default_multiturn() -> bool:
    """Whether examples are turns of a chat by default, which changed between versions."""
    from lm_eval.evaluator import simple_evaluate

    return bool(inspect.signature(simple_evaluate).parameters["fewshot_as_multiturn"].default)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Nothing that lm-eval prints: for short calls, since `quiet` also empties the caches of all loggers."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """No progress bars, printed lines or log records of lm-eval, and no hub's progress bars."""
    with silent():
        previous = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(previous)


def compiled_once() -> contextlib.AbstractContextManager[None]:
    """Inside this context lm-eval's `apply_template` keeps its compiled templates: it compiles one at each use."""
    from lm_eval import utils

    return replaced(utils, apply_template=lambda template, doc: str(_compiled(template).render(**doc)))


@functools.lru_cache(maxsize=4096)
def _compiled(template: str) -> Any:
    from lm_eval import utils

    return utils.env.from_string(template)


# The rows of its tasks: folders on the MILL_DATA search path first, then the hub.

_FILE_FORMATS = ("json", "csv", "parquet", "text")
_HUB = "hf://datasets/"


def local_first() -> contextlib.AbstractContextManager[None]:
    """Inside this context `datasets.load_dataset` looks on the search path before it goes to the hub."""
    import datasets

    original = datasets.load_dataset

    def load(path: str | None = None, name: str | None = None, *more: Any, **options: Any) -> Any:
        local = local_splits(str(path), name, options)
        if local is None:
            try:
                with reachable_hub():
                    return original(path, name, *more, **options)
            except Exception as error:
                dataset = f"{path} ({name})" if name else path
                raise DataError(
                    f"the dataset {dataset} is not on MILL_DATA, and the hub does not give it: {describe(error)}"
                ) from error
        split = options.get("split")
        return local if split is None else local[str(split)]

    return replaced(datasets, load_dataset=load)


def local_splits(path: str, name: str | None, options: Mapping[str, Any]) -> Splits | None:
    """The splits of a dataset on the search path; None where it is not there."""
    files = options.get("data_files")
    if path in _FILE_FORMATS and files:
        return _from_files(files)
    for folder in folders_on_search_path(path, name):
        found = splits_in(folder)
        if found:
            return Splits(found, f"{path}/{name}" if name else path)
    return None


def _from_files(files: Any) -> Splits | None:
    """One file of a hub repository (`hf://datasets/ORG/NAME/FILE`) for each split, where the search path has them."""
    found: dict[str, Path] = {}
    for split, addresses in (files if isinstance(files, Mapping) else {"train": files}).items():
        address = addresses if isinstance(addresses, str) else addresses[0] if len(addresses) == 1 else ""
        organisation, _, rest = address.removeprefix(_HUB).partition("/")
        repository, _, inside = rest.partition("/")
        folders = folders_on_search_path(f"{organisation}/{repository}", None) if address.startswith(_HUB) else []
        file = next((folder / inside for folder in folders if (folder / inside).is_file()), None)
        if file is None:
            return None
        found[str(split)] = file
    return Splits(found, str(files))


class Splits(dict[str, Any]):
    """The splits of a local dataset, each read when it is used.

    lm-eval opens the split of the examples also where none are used. For a split that is not there it gets a row of another,
    and `substituted` has its name: it must not be evaluated or drawn from.
    """

    def __init__(self, files: Mapping[str, Path], name: str) -> None:
        super().__init__(dict.fromkeys(files))
        self.files, self.name = dict(files), name
        self.substituted: set[str] = set()

    def __missing__(self, split: str) -> Any:
        self.substituted.add(split)
        return self[next(iter(self.files))].select([0])

    def __getitem__(self, split: str) -> Any:
        found = super().__getitem__(split)
        if found is None:
            found = _read(self.files[split])
            if not len(found):
                raise DataError(f"{self.files[split]} has no rows")
            self[split] = found
        return found

    def copy(self) -> Splits:
        found = Splits(self.files, self.name)
        found.update(self.items())
        return found

    def values(self) -> Any:
        return [self[split] for split in self]

    def items(self) -> Any:
        return [(split, self[split]) for split in self]

    def require(self, split: str | None, why: str) -> None:
        if split in self.substituted:
            raise DataError(f"no data for {self.name} ({split}), {why}: MILL_DATA has {', '.join(sorted(self.files))}")


def _read(path: Path) -> Any:
    import datasets

    if path.is_dir():
        return datasets.load_from_disk(str(path))
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return datasets.Dataset(pq.read_table(path))
    return datasets.Dataset.from_list(read_rows(path))
