"""BFCL: where its data comes from, what models get, how answers are scored, and the means that the leaderboard has.

The questions here are written for these tests; `benchmarks/bfcl_agreement.py` compares with the leaderboard's own checker on
those of the package bfcl-eval.
"""

from __future__ import annotations

import json
import math
import random
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from mill.api.errors import DataError
from mill.api.message import Message
from mill.api.response import Response
from mill.api.task import RenderSettings
from mill.api.tools import Tool, ToolCall
from mill.metrics.aggregate import mean
from mill.score.results import summarize_benchmarks
from mill.store.schema import TaskResult
from mill.tasks.bfcl.checker import (
    JAVA,
    JAVASCRIPT,
    PYTHON,
    java_value,
    javascript_value,
    tools_of,
    wrong_calls,
    wrong_value,
)
from mill.tasks.bfcl.multi_turn import DIALOGS
from mill.tasks.bfcl.questions import CATEGORIES, FunctionCallTask
from mill.tasks.load import make_task, select
from tests.growth import QUADRATIC, TIMES, growth

WEATHER = {
    "name": "weather.now",
    "description": "The weather.",
    "parameters": {
        "type": "dict",
        "properties": {
            "city": {"type": "string", "description": "A city."},
            "days": {"type": "integer", "description": "How many.", "default": 1},
        },
        "required": ["city"],
    },
}
ANSWER = {"weather.now": {"city": ["Bonn"], "days": [1, ""]}}
RIGHT = ToolCall.parse("weather_now", {"city": "bonn"})
WRONG = ToolCall.parse("weather_now", {"city": "Mainz"})


def question(number: int, category: str, *messages: tuple[str, str]) -> dict[str, Any]:
    turn = [{"role": role, "content": text} for role, text in messages or [("user", "The weather in Bonn?")]]
    return {"id": f"{category}_{number}", "question": [turn], "function": [WEATHER]}


def rows(category: str) -> list[dict[str, Any]]:
    return [question(0, category), question(1, category, ("system", "Be brief."), ("user", "Bonn?"))]


def answers(category: str) -> list[dict[str, Any]]:
    return [{"id": row["id"], "ground_truth": [ANSWER]} for row in rows(category)]


def write_data(folder: Path, category: str = "live_simple") -> Path:
    """The files of a category, as the package has them: JSON lines in .json files."""
    (folder / "possible_answer").mkdir(parents=True, exist_ok=True)
    name = f"BFCL_v4_{category}.json"
    (folder / name).write_text("\n".join(map(json.dumps, rows(category))))
    if "relevance" not in category:
        (folder / "possible_answer" / name).write_text("\n".join(map(json.dumps, answers(category))))
    return folder


def write_wheel(folder: Path) -> Path:
    data = write_data(folder / "unpacked/bfcl_eval/data")
    with zipfile.ZipFile(folder / "bfcl_eval-1-py3-none-any.whl", "w") as wheel:
        for file in data.rglob("*.json"):
            wheel.write(file, file.relative_to(folder / "unpacked"))
    return folder / "bfcl_eval-1-py3-none-any.whl"


@pytest.fixture(autouse=True)
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILL_BFCL", raising=False)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MILL_BFCL", str(tmp_path))
    return write_data(tmp_path)


def task(category: str = "live_simple") -> FunctionCallTask:
    made = make_task(f"bfcl_{category}")
    assert isinstance(made, FunctionCallTask)
    return made


def answered(*calls: ToolCall) -> Response:
    return Response(text="", tool_calls=calls)


# Data


@pytest.mark.parametrize("inside", ["", "data", "bfcl_eval/data"])
def test_data_from_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: str) -> None:
    write_data(tmp_path / inside)
    monkeypatch.setenv("MILL_BFCL", str(tmp_path))
    first, second = task().samples()
    assert (first.id, second.id) == ("live_simple_0", "live_simple_1")
    assert first.doc == {**rows("live_simple")[0], "ground_truth": [ANSWER]}


def test_data_from_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILL_BFCL", str(write_wheel(tmp_path)))
    assert [sample.doc["ground_truth"] for sample in task().samples()] == [[ANSWER], [ANSWER]]


def test_data_on_the_search_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(tmp_path / "gorilla-llm/bfcl")
    monkeypatch.setenv("MILL_DATA", str(tmp_path))
    assert len(task().samples()) == 2


def test_what_the_variable_names_is_the_only_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(tmp_path / "gorilla-llm/bfcl")
    monkeypatch.setenv("MILL_DATA", str(tmp_path))
    monkeypatch.setenv("MILL_BFCL", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"MILL_BFCL names .*nowhere, which is no wheel or folder of bfcl-eval"):
        task().samples()


def test_missing_data_is_one_line_and_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bfcl_eval", None)  # type: ignore[arg-type]  # as if it were not installed
    with pytest.raises(DataError, match=r"^no data for BFCL .*pip download bfcl-eval --no-deps.* and set MILL_BFCL.*$"):
        task("multiple").samples()


@pytest.mark.parametrize(
    ("file", "text", "error"),
    [
        ("BFCL_v4_live_simple.json", '{"id": "live_simple_0"', "line 1 is not JSON"),
        ("BFCL_v4_live_simple.json", "[1]", "row 1 is a list, not an object"),
        ("BFCL_v4_live_simple.json", '{"id": "a", "question": [[]]}', "row 1, is not valid: object missing required field"),
        ("BFCL_v4_live_simple.json", '{"id": "a", "id": "b"}', "line 1 has the key 'id' twice"),
        ("possible_answer/BFCL_v4_live_simple.json", "", "has no answer to live_simple_0"),
        ("possible_answer/BFCL_v4_live_simple.json", '{"id": "live_simple_0", "ground_truth": 1}', "ground_truth: expected"),
    ],
)  # fmt: skip
def test_malformed_data_is_refused(data: Path, file: str, text: str, error: str) -> None:
    (data / file).write_text(text)
    with pytest.raises(DataError) as raised:
        task().samples()
    assert error in str(raised.value) and str(data / file) in str(raised.value)


def test_answers_that_are_missing_are_named(data: Path) -> None:
    (data / "possible_answer/BFCL_v4_live_simple.json").unlink()
    with pytest.raises(DataError, match=r"possible_answer/BFCL_v4_live_simple\.json is missing"):
        task().samples()


@pytest.mark.parametrize("content", [b"", b"no wheel", b"PK\x03\x04 broken"])
def test_a_file_that_is_no_wheel_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    (tmp_path / "bfcl.whl").write_bytes(content)
    monkeypatch.setenv("MILL_BFCL", str(tmp_path / "bfcl.whl"))
    with pytest.raises(DataError, match=r"cannot read BFCL_v4_live_simple.json of .*bfcl\.whl"):
        task().samples()


# What the model gets


def test_a_request_has_the_dialog_and_the_tools(data: Path) -> None:
    _, sample = task().samples()
    (request,) = task().requests(sample, RenderSettings())
    assert request.context == (Message("system", "Be brief."), Message("user", "Bonn?"))
    assert request.options == {"until": (), "max_gen_toks": 4096, "temperature": 0.0}
    (tool,) = request.tools
    assert tool == Tool(
        "weather_now",
        "The weather. Note that the provided function is in Python 3 syntax.",
        {**WEATHER["parameters"], "type": "object"},  # type: ignore[dict-item]
    )


def test_a_system_prompt_is_in_front_of_that_of_the_question(data: Path) -> None:
    contexts = [task().requests(sample, RenderSettings(system_prompt="Be kind."))[0].context for sample in task().samples()]
    assert contexts[0] == (Message("system", "Be kind."), Message("user", "The weather in Bonn?"))
    assert contexts[1] == (Message("system", "Be kind.\n\nBe brief."), Message("user", "Bonn?"))


def schemas(properties: dict[str, Any], language: str) -> dict[str, Any]:
    function = {"name": "f", "description": "F.", "parameters": {"type": "dict", "properties": properties, "required": []}}
    (tool,) = tools_of([function], language)
    assert tool.parameters["type"] == "object"
    found: dict[str, Any] = tool.parameters["properties"]
    return found


def test_types_of_python_as_json_schema() -> None:
    given = {
        "rate": {"type": "float", "description": "A rate.", "enum": [0.5, 1.0]},
        "any": {"type": "any", "description": "Anything."},
        "point": {"type": "tuple", "description": "x, y", "items": {"type": "float"}},
        "grid": {"type": "array", "description": "Rows.", "items": {"type": "array", "items": {"type": "dict"}}},
        "trip": {"type": "dict", "description": "A trip.", "properties": {"km": {"type": "float", "description": "Km."}}},
        "legs": {"type": "array", "description": "Legs.", "items": {"type": "dict", "properties": {"n": {"type": "any"}}}},
        "untyped": {"description": "No type."},
    }
    as_float = {"type": "number", "format": "float"}
    assert schemas(given, PYTHON) == {
        "rate": {**as_float, "description": "A rate. This is a float type value.", "enum": [0.5, 1.0]},
        "any": {"type": "string", "description": "Anything."},
        "point": {"type": "array", "description": "x, y", "items": {"type": "number"}},
        "grid": {"type": "array", "description": "Rows.", "items": {"type": "array", "items": {"type": "object"}}},
        "trip": {
            "type": "object",
            "description": "A trip.",
            "properties": {"km": {**as_float, "description": "Km. This is a float type value."}},
        },
        "legs": {
            "type": "array",
            "description": "Legs.",
            "items": {"type": "object", "properties": {"n": {"type": "string"}}},
        },
        "untyped": {"type": "string", "description": "No type."},
    }


def test_parameters_of_java_and_javascript_are_texts() -> None:
    items = {"type": "integer"}
    java: dict[str, dict[str, Any]] = {
        "ids": {"type": "ArrayList", "description": "Ids.", "items": items},
        "owner": {"type": "any", "description": "Owner."},
    }
    assert schemas(java, JAVA) == {
        "ids": {
            "type": "string",
            "description": "Ids. This is Java ArrayList type parameter in string representation. "
            "The list elements are of type integer; they are not in string representation.",
        },
        "owner": {
            "type": "string",
            "description": "Owner. This parameter can be of any type of Java object in string representation.",
        },
    }
    javascript = {"set": {"type": "dict", "description": "Set.", "properties": {"n": items}}}
    assert schemas(javascript, JAVASCRIPT) == {
        "set": {
            "type": "string",
            "description": "Set. This is JavaScript dict type parameter in string representation. "
            "The dictionary entries have the following schema; they are not in string representation. "
            '{"n": {"type": "integer"}}',
        }
    }
    assert java["ids"]["items"] == items  # the description of the checker is unchanged


# Scores


@pytest.mark.parametrize(
    ("category", "calls", "value"),
    [
        ("irrelevance", (), 1.0),
        ("irrelevance", (RIGHT,), 0.0),
        ("live_irrelevance", (ToolCall.parse("weather_now", "{"),), 1.0),
        ("live_irrelevance", (RIGHT, ToolCall.parse("weather_now", "{")), 1.0),
        ("live_relevance", (), 0.0),
        ("live_relevance", (WRONG,), 1.0),
        ("live_relevance", (ToolCall.parse("weather_now", "[1]"),), 0.0),
    ],
)
def test_detection_counts_calls_that_can_be_read(
    data: Path, category: str, calls: tuple[ToolCall, ...], value: float
) -> None:
    write_data(data, category)
    sample, _ = task(category).samples()
    assert task(category).score(sample, [answered(*calls)]) == {"acc": value}


def test_calls_are_extracted_in_one_spelling(data: Path) -> None:
    sample, _ = task().samples()
    calls = (WRONG, ToolCall.parse("weather_now", '{"days": 1, "city": "bonn"}'), ToolCall.parse("f", "{"))
    assert task().extracted(sample, [answered(*calls)]) == (
        '[f({), weather_now(city="Mainz"), weather_now(city="bonn", days=1)]'
    )
    assert task().score(sample, [answered(RIGHT)]) == {"acc": 1.0}
    assert "not one of ['Bonn']" in task().details(sample, [answered(WRONG)])["reason"]


# Benchmarks


def test_means_are_those_of_the_leaderboard() -> None:
    """Live: by samples; others: equal weights. Overall: 10 % each of non-live, live and irrelevance, 30 % of multi-turn."""
    found = select(["bfcl"])
    categories = {f"bfcl_{category}" for category in (*CATEGORIES, *DIALOGS)}
    assert {one.name for one in found.tasks} == categories - {"bfcl_live_relevance"}
    right_of = {
        "simple_python": (4, 4), "simple_java": (1, 2), "simple_javascript": (0, 2), "multiple": (1, 4), "parallel": (2, 4),
        "parallel_multiple": (0, 4), "irrelevance": (1, 4), "live_simple": (6, 6), "live_multiple": (1, 10),
        "live_parallel": (1, 2), "live_parallel_multiple": (2, 2), "live_irrelevance": (3, 4), "multi_turn_base": (4, 4),
        "multi_turn_miss_func": (2, 4), "multi_turn_miss_param": (1, 2), "multi_turn_long_context": (0, 8),
    }  # fmt: skip
    results = {
        f"bfcl_{name}": TaskResult(
            task=f"bfcl_{name}", task_type="", version=1, n_shots=0, n=n, total=n, errors=0,
            metrics={"acc": mean([[1.0]] * right + [[0.0]] * (n - right))},
        )
        for name, (right, n) in right_of.items()
    }  # fmt: skip
    means = {one.benchmark: one.metrics["acc"].value for one in summarize_benchmarks(results, found.benchmarks)}
    assert means == pytest.approx(
        {
            "bfcl_simple": 0.5,  # (1 + 1/2 + 0) / 3
            "bfcl_non_live": 0.3125,  # (1/2 + 1/4 + 1/2 + 0) / 4
            "bfcl_live": 0.5,  # 10 of 20
            "bfcl_irrelevance_detection": 0.5,  # (1/4 + 3/4) / 2
            "bfcl_single_turn": 0.4375,  # (0.3125 + 0.5 + 0.5) / 3
            "bfcl_multi_turn": 0.5,  # (1 + 1/2 + 1/2 + 0) / 4
            "bfcl": 0.46875,  # (10 * 0.3125 + 10 * 0.5 + 10 * 0.5 + 30 * 0.5) / 60
        }
    )


# The checker

TEXT = {"type": "string"}
WHOLE = {"type": "integer"}
FLOAT = {"type": "float"}
FLAG = {"type": "boolean"}
TEXTS = {"type": "array", "items": {"type": "string"}}
FLOATS = {"type": "array", "items": {"type": "float"}}
PAIR = {"type": "tuple", "items": {"type": "float"}}
OBJECT = {"type": "dict", "properties": {}}
OBJECTS = {"type": "array", "items": {"type": "dict"}}
TRIP = [{"to": ["Bonn", "Köln"], "class": ["second", ""]}]
LEGS = [[{"to": ["Bonn"]}, {"to": ["Mainz"], "via": ["", "Trier"]}]]

RULES: list[tuple[dict[str, Any], list[Any], Any, bool]] = [
    (TEXT, ["New York, NY", "NYC"], "new-york ny", True),
    (TEXT, ["it's"], 'it"s', True),
    (TEXT, [""], "", True),
    ({"type": "any"}, ["five"], 5, False),
    (WHOLE, [5], 5.0, False),
    (WHOLE, [1], True, False),
    (FLOAT, [5.0], 5, True),
    (FLOAT, [5.0], math.nan, False),
    (FLAG, [True], 1, False),
    (TEXTS, [["Red wine", "Bread"]], ["red-wine", "bread"], True),
    (TEXTS, [["Red wine", "Bread"]], ["bread", "red wine"], False),
    (TEXTS, [["Red wine"], ""], [], True),
    (FLOATS, [[1.5, 2.0]], [1.5, 2], False),
    (FLOATS, [[1, 2]], [True, 2], False),
    (FLOATS, [[1, 2], ""], [True, 2], True),
    (PAIR, [[1.5, 2.5]], [1.5, 2.5], True),
    (OBJECT, TRIP, {"to": "bonn"}, True),
    (OBJECT, TRIP, {"to": "köln", "class": "second"}, True),
    (OBJECT, TRIP, {"class": "second"}, False),
    (OBJECT, TRIP, {"to": "Bonn", "day": 1}, False),
    (OBJECT, [{"at": [{"x": 1}]}], {"at": {"x": 1}}, True),
    (OBJECTS, LEGS, [{"to": "bonn"}, {"to": "Mainz", "via": "Trier"}], True),
    (OBJECTS, LEGS, [{"to": "Mainz"}, {"to": "Bonn"}], False),
    # The possible values have another type than the description: names of variables, or null, compared exactly.
    (WHOLE, ["", "dontcare"], "dontcare", True),
    (WHOLE, ["", "dontcare"], "DontCare", False),
    (TEXT, ["", None], None, True),
    (TEXTS, ["data['sales']"], "data['sales']", True),
]


CODE_RULES: list[tuple[str, dict[str, Any], list[Any], Any, bool]] = [
    (JAVA, {"type": "integer"}, [5], "5", True),
    (JAVA, {"type": "integer"}, [5], 5, False),
    (JAVA, {"type": "integer"}, ["Limits.MOST"], "Limits.MOST", True),
    (JAVA, {"type": "long"}, [5], "5L", True),
    (JAVA, {"type": "boolean"}, [True], "True", False),
    (JAVA, {"type": "String"}, ["Main Street"], "main street", True),
    (JAVA, {"type": "Array", "items": {"type": "integer"}}, [[1, 2]], "new int[]{1, 2}", True),
    (JAVA, {"type": "Array", "items": {"type": "integer"}}, [[1, 2]], "new int[]{2, 1}", False),
    (
        JAVA,
        {"type": "ArrayList", "items": {"type": "String"}},
        [["a", "b"]],
        'new ArrayList<>(Arrays.asList("a", "b"))',
        True,
    ),
    (JAVA, {"type": "HashMap"}, [{"k": [1], "l": ["x"]}], 'new HashMap<>() {{ put("k", 1); put("l", "x"); }}', True),
    (JAVASCRIPT, {"type": "String"}, ["x y"], "'X Y'", True),
    (JAVASCRIPT, {"type": "float"}, [3.0], "3", True),
    (JAVASCRIPT, {"type": "array", "items": {"type": "String"}}, [["a", "b"]], "['a', \"b\"]", True),
    (JAVASCRIPT, {"type": "dict"}, [{"on": [True], "n": [2]}], "{on: true, 'n': 2}", True),
]


@pytest.mark.parametrize(("parameter", "possible", "value", "right"), RULES)
def test_values(parameter: dict[str, Any], possible: list[Any], value: Any, right: bool) -> None:
    assert (not wrong_value(value, parameter, possible, PYTHON)) is right


@pytest.mark.parametrize(("language", "parameter", "possible", "value", "right"), CODE_RULES)
def test_values_in_source_code(
    language: str, parameter: dict[str, Any], possible: list[Any], value: Any, right: bool
) -> None:
    assert (not wrong_value(value, parameter, possible, language)) is right


@pytest.mark.parametrize(
    ("text", "kind", "items", "value"),
    [
        ("-7", "short", None, -7),
        ("2.5", "float", None, "2.5"),
        ("new String[] { }", "Array", "String", []),
        ('new String[]{"a"}', "Array", "String", ['"a"']),  # the leaderboard leaves these quotes
        ("new ArrayList<Long>() {{ add(1L);\n add(2L); }}", "ArrayList", "long", [1, 2]),
        ('new HashMap<String, Object>() {{ put("f", 2.5f); put("b", true); put("n", 5L); put("v", name); }}',
         "HashMap", None, {"f": 2.5, "b": True, "n": 5, "v": "name"}),
        ("9" * 5000, "integer", None, "9" * 5000),
    ],
)  # fmt: skip
def test_forms_of_java(text: str, kind: str, items: str | None, value: Any) -> None:
    assert repr(java_value(text, kind, items)) == repr(value)


@pytest.mark.parametrize(
    ("text", "kind", "items", "value"),
    [
        ("10n", "Bigint", None, 10),
        ("new Array(1, 2)", "array", "integer", [1, 2]),
        ("[[1, 2], [3, 'x']]", "array", "array", [[1, 2], [3, "x"]]),
        ("{'c,d': 2.5, a: [1, 'x'], b: \"y, z\", e: false}", "dict", None,
         {"c,d": 2.5, "a": [1, "x"], "b": "y, z", "e": False}),
        ("{a: {b: 1}}", "dict", None, {"a": "{b: 1"}),  # the leaderboard reads no objects within objects
    ],
)  # fmt: skip
def test_forms_of_javascript(text: str, kind: str, items: str | None, value: Any) -> None:
    assert repr(javascript_value(text, kind, items)) == repr(value)


LONG = [
    ("[[", "1],[", ""),
    ("", 'put("', ""),
    ("", "new HashMap<", ""),
    ("new HashMap<>() {{ ", 'put("', "}}"),
    ("", "new ArrayList<>(){{", ""),
    ("", "new ArrayList<>(Arrays.asList(", ""),
]


@pytest.mark.parametrize(("start", "piece", "end"), LONG)
def test_the_time_of_a_long_text_is_at_most_quadratic(start: str, piece: str, end: str) -> None:
    """A model may write anything, and a pattern that backtracks would never end."""

    def read(text: str) -> None:
        for kind in ("Array", "ArrayList", "HashMap"):
            java_value(text, kind, "String")
        for kind in ("array", "dict"):
            javascript_value(text, kind, "String")

    small, large = (start + piece * (length // len(piece)) + end for length in (1000, 1000 * TIMES))
    assert growth(read, small, large) < QUADRATIC


RIDE = {
    "name": "taxi.book",
    "description": "",
    "parameters": {"type": "dict", "properties": {"to": TEXT, "seats": WHOLE, "note": TEXT}, "required": ["to"]},
}
PAY = {"name": "pay", "description": "", "parameters": {"type": "dict", "properties": {"sum": FLOAT}, "required": ["sum"]}}


def ride(to: str, **more: Any) -> ToolCall:
    return ToolCall.parse("taxi_book", {"to": to, **more})


def expected(to: str) -> dict[str, Any]:
    return {"taxi.book": {"to": [to], "seats": [2, ""], "note": [""]}}


@pytest.mark.parametrize(
    ("calls", "wanted", "reason"),
    [
        ([ride("Bonn")], [expected("Bonn")], ""),
        ([ride("Bonn", seats=3)], [expected("Bonn")], "seats of taxi_book is 3, not one of [2, '']"),
        ([ride("Bonn", seats="2")], [expected("Bonn")], "seats of taxi_book is '2', not of type integer"),
        ([ride("Bonn", pets=1)], [expected("Bonn")], "taxi_book is called with pets, which is not expected"),
        ([ToolCall.parse("taxi_book", {"seats": 2})], [expected("Bonn")], "taxi_book is called without to"),
        ([ToolCall.parse("taxi_book", '{"to":')], [expected("Bonn")], "the arguments of taxi_book are not a JSON object"),
        ([ToolCall.parse("taxi.book", {"to": "Bonn"})], [expected("Bonn")], "taxi.book is called instead of taxi_book"),
        ([], [expected("Bonn")], "0 calls instead of 1"),
        ([ride("Bonn")], [{"taxi.book": {"to": ["Bonn"], "seats": [2]}}], "taxi_book is called without seats"),
        ([ride("Mainz"), ride("Bonn")], [expected("Bonn"), expected("Mainz")], ""),
        ([ToolCall.parse("pay", {"sum": 5}), ride("Bonn")], [expected("Bonn"), {"pay": {"sum": [5.0]}}], ""),
        ([ride("Bonn"), ride("Bonn")], [expected("Bonn"), expected("Mainz")],
         "no call is the expected one of taxi.book: to of taxi_book is 'Bonn', not one of ['Mainz']"),
    ],
)  # fmt: skip
def test_calls(calls: list[ToolCall], wanted: list[dict[str, Any]], reason: str) -> None:
    assert wrong_calls(calls, wanted, [RIDE, PAY], PYTHON) == reason


ODD: list[Any] = [None, True, 0, -1, 10**400, -(10**400), math.nan, math.inf, "", "x", "\ud800", "[", "{" * 50, "9" * 5000]
ODD += [[], [[]], [None], {}, {"": None}, {"to": {"to": []}}, [{}], [{"to": math.nan}], ["a", 1, None, [2]], (), ((),)]


@pytest.mark.parametrize("language", [PYTHON, JAVA, JAVASCRIPT])
def test_no_argument_raises(language: str) -> None:
    """Every odd value for every rule, and drawn combinations of them."""
    draw = random.Random(0)
    deep: Any = "x"
    for _ in range(500):
        deep = [deep] if draw.random() < 0.5 else {"to": deep}
    values = [*ODD, deep, *(draw.choices(ODD, k=3) for _ in range(50)), *({"to": value} for value in ODD)]
    cases = [(parameter, possible) for parameter, possible, _, _ in RULES]
    cases += [(parameter, possible) for _, parameter, possible, _, _ in CODE_RULES]
    for parameter, possible in cases:
        for value in values:
            assert isinstance(wrong_value(value, parameter, possible, language), str)
            call = ToolCall("taxi_book", {"to": value, "seats": value, "?": value})
            assert wrong_calls([call], [expected("Bonn")], [RIDE], language)
