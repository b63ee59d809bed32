"""Questions and answers of BFCL: the data files of the package bfcl-eval, which is never imported; and its single-turn
categories: the functions go to the model as tools, and its calls are compared with the expected ones."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import lzma
import os
import posixpath
import zlib
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

from mill.api.errors import DataError
from mill.api.message import Message
from mill.api.request import GENERATE, Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample, Task, TaskType, Value
from mill.api.tools import ToolCall
from mill.support.terminal import describe
from mill.support.validate import convert
from mill.tasks.bfcl.checker import JAVA, JAVASCRIPT, PYTHON, tools_of, wrong_calls
from mill.tasks.bfcl.simulation import CODE, MODULES
from mill.tasks.data import Row, json_lines, roots

VARIABLE = "MILL_BFCL"
_FOLDERS = ("gorilla-llm/bfcl", "gorilla-llm/Berkeley-Function-Calling-Leaderboard")
_IN_PACKAGE = "bfcl_eval/data"


@dataclass
class _Function:
    name: str
    description: str
    parameters: dict[str, Any]


@dataclass
class _Question:
    id: str
    question: list[list[dict[str, str]]]
    function: list[_Function]


@dataclass
class _Dialog:
    id: str
    question: list[list[dict[str, str]]]
    initial_config: dict[str, dict[str, Any]]
    involved_classes: list[str]
    missed_function: dict[str, list[str]] = field(default_factory=dict)
    """Index of a turn -> the functions that the model has from then on."""


@dataclass
class _Answer:
    id: str
    ground_truth: list[Any]
    """For each expected call the function's name with the possible values of each parameter; in a dialog, for each turn the
    expected calls as source code."""


def read_questions(category: str, *, with_answers: bool) -> list[Row]:
    """The rows of a category; with answers, each has the expected calls as `ground_truth`."""
    name = f"BFCL_v4_{category}.json"
    source, text = _find(name)
    questions = _rows(text, source / name, _Question)
    if not with_answers:
        return questions
    return _with_answers(questions, source, name)


def _with_answers(questions: list[Row], source: Path, name: str) -> list[Row]:
    """The questions of a file, each with its answer as `ground_truth`."""
    file = source / "possible_answer" / name
    text = _text(source, f"possible_answer/{name}")
    if text is None:
        raise DataError(f"{file} is missing: it has the answers to {source / name}")
    answers = {row["id"]: row["ground_truth"] for row in _rows(text, file, _Answer)}
    if without := [row["id"] for row in questions if row["id"] not in answers]:
        raise DataError(f"{file} has no answer to {without[0]}")
    return [{**row, "ground_truth": answers[row["id"]]} for row in questions]


def read_dialogs(category: str) -> list[Row]:
    """The rows of a multi-turn category; each has the functions of its classes as `function`, and as `ground_truth` the
    expected calls of each turn."""
    name = f"BFCL_v4_{category}.json"
    source, text = _find(name)
    dialogs = _with_answers(_rows(text, source / name, _Dialog), source, name)
    documented = {stem: _function_docs(source, stem) for stem in MODULES.values()}
    for row in dialogs:
        where = f"{source / name}: {row['id']}"
        if unknown := [name for name in row["involved_classes"] if name not in MODULES]:
            raise DataError(f"{where} has the class {unknown[0]!r}, which mill does not know: {', '.join(MODULES)}")
        if len(row["question"]) != len(row["ground_truth"]):
            raise DataError(f"{where} has {len(row['question'])} turns, and expected calls for {len(row['ground_truth'])}")
        row["function"] = [one for name in row["involved_classes"] for one in documented[MODULES[name]]]
    return dialogs


def _function_docs(source: Path, stem: str) -> list[Row]:
    """The descriptions of the functions of a class, without those of what they return, which no model gets."""
    name = f"multi_turn_func_doc/{stem}.json"
    rows = _rows(_needed(source, name), source / name, _Function)
    return [{part: row[part] for part in ("name", "description", "parameters")} for row in rows]


def read_code(category: str) -> dict[str, str]:
    """The source code of the simulated APIs, module by module, of the package that has the category's questions."""
    source, _ = _find(f"BFCL_v4_{category}.json")
    return {stem: _needed(source, f"../{CODE}/{stem}.py") for stem in (*MODULES.values(), "long_context")}


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
        found = Path(given)
        with contextlib.suppress(RuntimeError):  # of a user that does not exist
            found = found.expanduser()
        yield from (found, found / "data", found / _IN_PACKAGE)
        return
    yield from (root / folder for root in roots() for folder in _FOLDERS)
    spec = importlib.util.find_spec("bfcl_eval")
    for location in (spec.submodule_search_locations if spec is not None else None) or ():
        yield Path(location, "data")


def _needed(source: Path, name: str) -> str:
    text = _text(source, name)
    if text is None:
        raise DataError(
            f"{source} lacks {name}: multi-turn questions of BFCL need the whole package bfcl-eval, not only its data; "
            f"run `pip download bfcl-eval --no-deps` and set {VARIABLE} to the wheel"
        )
    return text


def _text(source: Path, name: str) -> str | None:
    """A file of the package, with its path from the data folder, in a wheel or a folder; None where there is none."""
    try:
        if not source.is_file():
            return (source / name).read_text(encoding="utf-8") if (source / name).is_file() else None
        with ZipFile(source) as wheel:
            member = posixpath.normpath(f"{_IN_PACKAGE}/{name}")
            if member not in wheel.namelist():
                return None
            return wheel.read(member).decode()
    except (OSError, BadZipFile, zlib.error, lzma.LZMAError, NotImplementedError, RuntimeError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {name} of {source}: {describe(error)}") from error


_NAMES = """
    simple_python simple_java simple_javascript multiple parallel parallel_multiple irrelevance
    live_simple live_multiple live_parallel live_parallel_multiple live_irrelevance live_relevance
"""
CATEGORIES = _NAMES.split()
_LANGUAGES = {"simple_java": JAVA, "simple_javascript": JAVASCRIPT}
NO_CALL, ANY_CALL = "no call", "any call"
# Categories without expected calls: what is right there.
_DETECTION = {"irrelevance": NO_CALL, "live_irrelevance": NO_CALL, "live_relevance": ANY_CALL}


class CallTask(Task):
    """`acc` is 1 where nothing is wrong with the calls."""

    task_type = TaskType.GENERATIVE_QA
    metrics = {"acc": "mean"}

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.category_name = name.removeprefix("bfcl_")

    @abstractmethod
    def wrong(self, sample: Sample, responses: Sequence[Response]) -> str:
        """Why responses are wrong; empty where they are right."""

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        return {"acc": float(not self.wrong(sample, responses))}

    def details(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Any]:
        reason = self.wrong(sample, responses)
        return {"reason": reason} if reason else {}


class FunctionCallTask(CallTask):
    """The calls are the expected ones, in any order."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.language = _LANGUAGES.get(self.category_name, PYTHON)
        self.detection = _DETECTION.get(self.category_name)

    def samples(self) -> Sequence[Sample]:
        rows = read_questions(self.category_name, with_answers=self.detection is None)
        return [Sample(row["id"], row) for row in rows]

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        return [
            Request(
                GENERATE,
                context=with_system_prompt(turn_messages(sample, 0), settings.system_prompt),
                options=settings.options(max_gen_toks=4096),
                tools=tools_of(sample.doc["function"], self.language),
            )
        ]

    def target(self, sample: Sample) -> Any:
        return self.detection or sample.doc["ground_truth"]

    def extracted(self, sample: Sample, responses: Sequence[Response]) -> str:
        """All calls in one spelling: their order and that of their arguments do not matter."""
        return f"[{', '.join(sorted(map(spelled, responses[0].tool_calls)))}]"

    def wrong(self, sample: Sample, responses: Sequence[Response]) -> str:
        calls = responses[0].tool_calls
        if self.detection is None:
            return wrong_calls(calls, sample.doc["ground_truth"], sample.doc["function"], self.language)
        # As on the leaderboard, a response with a call that cannot be parsed makes none.
        called = bool(calls) and all(call.arguments is not None for call in calls)
        if called == (self.detection == ANY_CALL):
            return ""
        return f"{len(calls)} calls, where none is expected" if called else "no call that can be read"


def turn_messages(sample: Sample, turn: int) -> tuple[Message, ...]:
    return tuple(Message(message["role"], message["content"]) for message in sample.doc["question"][turn])


def with_system_prompt(messages: tuple[Message, ...], system_prompt: str | None) -> tuple[Message, ...]:
    """The question's messages; the run's system prompt is in front of its own."""
    if not system_prompt:
        return messages
    if messages and messages[0].role == "system":
        system_prompt, messages = f"{system_prompt}\n\n{messages[0].text}", messages[1:]
    return (Message("system", system_prompt), *messages)


def spelled(call: ToolCall) -> str:
    """A call as text; the order of its arguments does not matter."""
    if call.arguments is None:
        return f"{call.name}({call.text})"
    arguments = (
        f"{name}={json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)}"
        for name, value in sorted(call.arguments.items())
    )
    return f"{call.name}({', '.join(arguments)})"
