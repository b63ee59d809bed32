"""Errors that mill shows to its user: one line that says what was given, what is wrong and what would work."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

UNDECIDED_EXIT = 5  # the exit code where samples are too few to decide


class MillError(Exception):
    """Shown as one line on standard error; the command then ends with `exit_code`."""

    exit_code = 2


class SpecError(MillError):
    """A model spec, an argument or an option that cannot be read."""


class UnknownName(MillError):
    """A backend, task, metric, argument or option that does not exist."""

    def __init__(self, what: str, name: str, known: Iterable[str], hint: str = "") -> None:
        self.nearest = nearest(name, known)
        text = f"unknown {what} {name!r}"
        if self.nearest:
            text += "; did you mean " + " or ".join(self.nearest) + "?"
        if hint:
            text += ("; " if not self.nearest else " ") + hint
        super().__init__(text)


class MissingPackage(MillError):
    """An optional package that is not installed."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(f"{what} needs the package {package}: {install_command(extra)}")


def install_command(extra: str) -> str:
    """The command that installs an extra, in a clone of the repository."""
    return f'pip install -e ".[{extra}]"'


def import_pandas(what: str) -> Any:
    """pandas, for a function that returns data frames."""
    try:
        import pandas
    except ImportError:
        raise MissingPackage(what, "pandas", "frames") from None
    return pandas


class CannotServe(MillError):
    """A task that the model's interface cannot answer."""


class DataError(MillError):
    """A dataset, a prompt file or a record that is missing or unreadable."""


class MissingValue(DataError):
    """A cell of a table without a value."""


class ModelError(MillError):
    """A model that is missing, does not load, or fails on every request."""


class ModelBroken(ModelError):
    """A model that fails on every request from the start."""


class FastPathFailed(ModelError):
    """A fast path has other results than the plain path: it is off from now on, and its answers must be computed again."""


class ServerGone(ModelError):
    """A server that cannot be reached any more."""


class ServerBroken(ServerGone):
    """A server that can be reached and fails on every request."""


class RunError(MillError):
    """A run folder that cannot be read or written."""


class Interrupted(MillError):
    """Interrupted by the user; `how` the command is repeated, it resumes."""

    exit_code = 130

    def __init__(self, how: str = "the same command") -> None:
        super().__init__(f"interrupted; all completed requests are recorded: {how} resumes from there")


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Up to three known names that look like `name`."""
    return difflib.get_close_matches(name, sorted(set(known)), n=3, cutoff=0.6)
