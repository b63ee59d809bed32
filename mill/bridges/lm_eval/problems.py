"""What a task of lm-eval lacks, or what its code raises, as one line."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

from mill.api.batching import describe
from mill.api.errors import DataError, MillError, SpecError

_NLTK = re.compile(r"nltk\.download\(['\"]([\w.-]+)['\"]\)")
_SCRIPT = "Dataset scripts are no longer supported"


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


def dataset_problem(path: str, name: str | None, error: BaseException) -> DataError:
    """Why a dataset, which the search path does not have, cannot be loaded from the hub either."""
    dataset = f"{path} ({name})" if name else path
    if _SCRIPT in str(error):
        return DataError(f"the dataset {dataset} is a script, which `datasets` 4 does not run: put its rows on MILL_DATA")
    return DataError(f"the dataset {dataset} is not on MILL_DATA, and the hub does not give it: {describe(error)}")
