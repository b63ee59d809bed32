"""The leaderboard's rules for calls. The verdicts of these cases are those of bfcl-eval's checker (2026.3.23)."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from mill.api.tools import ToolCall
from mill.tasks.bfcl.checker import java_value, javascript_value, wrong_calls, wrong_value
from mill.tasks.bfcl.function_docs import JAVA, JAVASCRIPT, PYTHON
from tests.growth import QUADRATIC, TIMES, growth

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
    (TEXT, ["New York, NY", "NYC"], "nyc", True),
    (TEXT, ["New York, NY", "NYC"], "York", False),
    (TEXT, ["it's"], 'it"s', True),
    (TEXT, ["5"], 5, False),
    (TEXT, [""], "", True),
    (TEXT, [""], "x", False),
    ({"type": "any"}, ["five"], "Five", True),
    ({"type": "any"}, ["five"], 5, False),
    (WHOLE, [5], 5, True),
    (WHOLE, [5, 6, ""], 6, True),
    (WHOLE, [5], 5.0, False),
    (WHOLE, [5], "5", False),
    (WHOLE, [1], True, False),
    (FLOAT, [5.0], 5, True),
    (FLOAT, [5], 5.0, True),
    (FLOAT, [5.0], "5.0", False),
    (FLOAT, [5.0], math.nan, False),
    (FLAG, [True], True, True),
    (FLAG, [True], False, False),
    (FLAG, [True], 1, False),
    (TEXTS, [["Red wine", "Bread"]], ["red-wine", "bread"], True),
    (TEXTS, [["Red wine", "Bread"]], ["bread", "red wine"], False),
    (TEXTS, [["Red wine", "Bread"]], ["Red wine"], False),
    (TEXTS, [["Red wine", "Bread"]], "Red wine, Bread", False),
    (TEXTS, [["Red wine", "Bread"]], ["Red wine", 5], False),
    (TEXTS, [["Red wine"]], [], False),
    (TEXTS, [["Red wine"], ""], [], True),
    (FLOATS, [[1.5, 2.0]], [1.5, 2.0], True),
    (FLOATS, [[1.5, 2.0]], [1.5, 2], False),
    (FLOATS, [[1, 2]], [1, 2.0], True),
    (FLOATS, [[1, 2]], [True, 2], False),
    (FLOATS, [[1, 2], ""], [True, 2], True),
    (PAIR, [[1.5, 2.5]], [1.5, 2.5], True),
    (PAIR, [[1.5, 2.5]], {"x": 1.5}, False),
    (OBJECT, TRIP, {"to": "bonn"}, True),
    (OBJECT, TRIP, {"to": "köln", "class": "second"}, True),
    (OBJECT, TRIP, {"to": "Bonn", "class": "first"}, False),
    (OBJECT, TRIP, {"class": "second"}, False),
    (OBJECT, TRIP, {"to": "Bonn", "day": 1}, False),
    (OBJECT, TRIP, {}, False),
    (OBJECT, TRIP, ["Bonn"], False),
    (OBJECT, [{"at": [{"x": 1}]}], {"at": {"x": 1}}, True),
    (OBJECTS, LEGS, [{"to": "bonn"}, {"to": "Mainz", "via": "Trier"}], True),
    (OBJECTS, LEGS, [{"to": "Mainz"}, {"to": "Bonn"}], False),
    (OBJECTS, LEGS, [{"to": "Bonn"}], False),
    (OBJECTS, LEGS, [["Bonn"], ["Mainz"]], False),
    # The possible values have another type than the description: names of variables, or null, compared exactly.
    (WHOLE, ["", "dontcare"], "dontcare", True),
    (WHOLE, ["", "dontcare"], "DontCare", False),
    (WHOLE, ["", "dontcare"], 5, False),
    (TEXT, [True], True, True),
    (TEXT, [True], "true", False),
    (TEXT, ["", None], None, True),
    (TEXTS, ["data['sales']"], "data['sales']", True),
    (TEXTS, ["data['sales']"], ["data['sales']"], False),
]


@pytest.mark.parametrize(("parameter", "possible", "value", "right"), RULES)
def test_values_of_python(parameter: dict[str, Any], possible: list[Any], value: Any, right: bool) -> None:
    assert (not wrong_value(value, parameter, possible, PYTHON)) is right


CODE_RULES: list[tuple[str, dict[str, Any], list[Any], Any, bool]] = [
    (JAVA, {"type": "integer"}, [5], "5", True),
    (JAVA, {"type": "integer"}, [5], 5, False),
    (JAVA, {"type": "integer"}, [5], "5.0", False),
    (JAVA, {"type": "integer"}, ["Limits.MOST"], "Limits.MOST", True),
    (JAVA, {"type": "integer"}, ["Limits.MOST"], "limits.most", False),
    (JAVA, {"type": "long"}, [5], "5L", True),
    (JAVA, {"type": "long"}, [5], "5", False),
    (JAVA, {"type": "boolean"}, [True], "true", True),
    (JAVA, {"type": "boolean"}, [True], "True", False),
    (JAVA, {"type": "String"}, ["Main Street"], "main street", True),
    (JAVA, {"type": "any"}, ["mapController"], "mapController", True),
    (JAVA, {"type": "Array", "items": {"type": "integer"}}, [[1, 2]], "new int[]{1, 2}", True),
    (JAVA, {"type": "Array", "items": {"type": "integer"}}, [[1, 2]], "new int[]{2, 1}", False),
    (JAVA, {"type": "Array", "items": {"type": "integer"}}, [[1, 2]], "[1, 2]", False),
    (JAVA, {"type": "Array", "items": {"type": "String"}}, ["arguments"], "arguments", True),
    (
        JAVA,
        {"type": "ArrayList", "items": {"type": "String"}},
        [["a", "b"]],
        'new ArrayList<>(Arrays.asList("a", "b"))',
        True,
    ),
    (JAVA, {"type": "HashMap"}, [{"k": [1], "l": ["x"]}], 'new HashMap<>() {{ put("k", 1); put("l", "x"); }}', True),
    (JAVA, {"type": "HashMap"}, [{"k": [1], "l": ["x"]}], 'new HashMap<>() {{ put("k", 1); }}', False),
    (JAVASCRIPT, {"type": "String"}, ["x y"], "'X Y'", True),
    (JAVASCRIPT, {"type": "float"}, [3.0], "3", True),
    (JAVASCRIPT, {"type": "float"}, [3.0], 3, False),
    (JAVASCRIPT, {"type": "Boolean"}, [True], "true", True),
    (JAVASCRIPT, {"type": "array", "items": {"type": "String"}}, [["a", "b"]], "['a', \"b\"]", True),
    (JAVASCRIPT, {"type": "array", "items": {"type": "String"}}, ["myList"], "myList", True),
    (JAVASCRIPT, {"type": "dict"}, [{"on": [True], "n": [2]}], "{on: true, 'n': 2}", True),
    (JAVASCRIPT, {"type": "dict"}, [{"on": [True], "n": [2]}], "{on: true}", False),
]


@pytest.mark.parametrize(("language", "parameter", "possible", "value", "right"), CODE_RULES)
def test_values_in_source_code(
    language: str, parameter: dict[str, Any], possible: list[Any], value: Any, right: bool
) -> None:
    assert (not wrong_value(value, parameter, possible, language)) is right


@pytest.mark.parametrize(
    ("text", "kind", "items", "value"),
    [
        ("-7", "short", None, -7),
        ("2.5f", "float", None, 2.5),
        ("2.5", "float", None, "2.5"),
        ("1e3", "double", None, 1000.0),
        ("'c'", "char", None, "'c'"),
        ("new String[] { }", "Array", "String", []),
        ('new String[]{"a"}', "Array", "String", ['"a"']),  # the leaderboard leaves these quotes
        ("new ArrayList<Long>() {{ add(1L);\n add(2L); }}", "ArrayList", "long", [1, 2]),
        ("new ArrayList<>()", "ArrayList", "String", []),
        ("List.of(1, 2)", "ArrayList", "integer", "List.of(1, 2)"),
        ('new HashMap<String, Object>() {{ put("f", 2.5f); put("b", true); put("n", 5L); put("v", name); }}',
         "HashMap", None, {"f": 2.5, "b": True, "n": 5, "v": "name"}),
        ("new HashMap<>()", "HashMap", None, {}),
        ("{}", "HashMap", None, "{}"),
        ("9" * 5000, "integer", None, "9" * 5000),
    ],
)  # fmt: skip
def test_forms_of_java(text: str, kind: str, items: str | None, value: Any) -> None:
    assert repr(java_value(text, kind, items)) == repr(value)


@pytest.mark.parametrize(
    ("text", "kind", "items", "value"),
    [
        ("10n", "Bigint", None, 10),
        ("10", "Bigint", None, "10"),
        ("1e3", "float", None, "1e3"),
        ("[]", "array", "String", []),
        ("new Array(1, 2)", "array", "integer", [1, 2]),
        ("[[1, 2], [3, 'x']]", "array", "array", [[1, 2], [3, "x"]]),
        ("new Array([1], [2])", "array", "array", [[1], [2]]),
        ("{'c,d': 2.5, a: [1, 'x'], b: \"y, z\", e: false}", "dict", None,
         {"c,d": 2.5, "a": [1, "x"], "b": "y, z", "e": False}),
        ("{a: {b: 1}}", "dict", None, {"a": "{b: 1"}),  # the leaderboard reads no objects within objects
        ("{}", "dict", None, {}),
        ("settings", "dict", None, "settings"),
    ],
)  # fmt: skip
def test_forms_of_javascript(text: str, kind: str, items: str | None, value: Any) -> None:
    assert repr(javascript_value(text, kind, items)) == repr(value)


LONG = [
    ("[[", "1],[", ""),
    ("", "[", ""),
    ("[[]", " ", ""),
    ("{", "a:,", ""),
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
        ([ride("Bonn", seats=2)], [expected("Bonn")], ""),
        ([ride("Bonn", seats=3)], [expected("Bonn")], "seats of taxi_book is 3, not one of [2, '']"),
        ([ride("Bonn", seats="2")], [expected("Bonn")], "seats of taxi_book is '2', not of type integer"),
        ([ride("Bonn", pets=1)], [expected("Bonn")], "taxi_book is called with pets, which is not expected"),
        ([ToolCall.parse("taxi_book", {"seats": 2})], [expected("Bonn")], "taxi_book is called without to"),
        ([ToolCall.parse("taxi_book", '{"to":')], [expected("Bonn")], "the arguments of taxi_book are not a JSON object"),
        ([ToolCall.parse("taxi.book", {"to": "Bonn"})], [expected("Bonn")], "taxi.book is called instead of taxi_book"),
        ([], [expected("Bonn")], "0 calls instead of 1"),
        ([ride("Bonn"), ride("Bonn")], [expected("Bonn")], "2 calls instead of 1"),
        ([ride("Bonn")], [{"taxi.book": {"to": ["Bonn"], "seats": [2]}}], "taxi_book is called without seats"),
        ([ride("Mainz"), ride("Bonn")], [expected("Bonn"), expected("Mainz")], ""),
        ([ToolCall.parse("pay", {"sum": 5}), ride("Bonn")], [expected("Bonn"), {"pay": {"sum": [5.0]}}], ""),
        ([ride("Bonn"), ride("Bonn")], [expected("Bonn"), expected("Mainz")],
         "no call is the expected one of taxi.book: to of taxi_book is 'Bonn', not one of ['Mainz']"),
    ],
)  # fmt: skip
def test_calls(calls: list[ToolCall], wanted: list[dict[str, Any]], reason: str) -> None:
    assert wrong_calls(calls, wanted, [RIDE, PAY], PYTHON) == reason


def test_an_expected_call_takes_the_first_that_fits() -> None:
    """So on the leaderboard: the call that fits both is taken by the first, and the second is left without one."""
    either = {"pay": {"sum": [5.0, 6.0]}}
    pay5, pay6 = ToolCall.parse("pay", {"sum": 5}), ToolCall.parse("pay", {"sum": 6})
    assert not wrong_calls([pay6, pay5], [either, {"pay": {"sum": [5.0]}}], [PAY], PYTHON)
    assert wrong_calls([pay5, pay6], [either, {"pay": {"sum": [5.0]}}], [PAY], PYTHON)


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
