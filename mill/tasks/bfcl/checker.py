"""The leaderboard's rules for calls: name, parameters and values are compared with the possible ones; nothing is executed.

Each function returns why a call is wrong, as text; it is empty where the call is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mill.api.tools import ToolCall
from mill.tasks.bfcl.code_values import java_value, javascript_value
from mill.tasks.bfcl.function_docs import JAVA, JAVASCRIPT, PYTHON, tool_name

OPTIONAL = ""
"""Among the possible values of a parameter: it may be left out."""

_TYPES: Mapping[str, Mapping[str, type]] = {
    PYTHON: {"integer": int, "float": float, "boolean": bool, "array": list, "tuple": list, "dict": dict},
    JAVA: {
        **dict.fromkeys(("byte", "short", "integer", "long"), int),
        **dict.fromkeys(("float", "double"), float),
        **dict.fromkeys(("Array", "ArrayList"), list),
        "HashMap": dict,
        "boolean": bool,
    },
    JAVASCRIPT: {"integer": int, "Bigint": int, "float": float, "Boolean": bool, "array": list, "dict": dict},
}
_READERS = {JAVA: java_value, JAVASCRIPT: javascript_value}
_WITH_ITEMS = ("array", "tuple", "Array", "ArrayList")
_IGNORED = str.maketrans("'", '"', " ,./-_*^")


def wrong_calls(
    calls: Sequence[ToolCall],
    expected: Sequence[Mapping[str, Mapping[str, Any]]],
    functions: Sequence[Mapping[str, Any]],
    language: str,
) -> str:
    """Whether these are the expected calls, in any order: each expected call takes the first of the others that fits."""
    if len(calls) != len(expected):
        return f"{len(calls)} calls instead of {len(expected)}"
    described = {function["name"]: function for function in functions}
    left = list(calls)
    for answer in expected:
        ((name, possible),) = answer.items()
        reasons = [wrong_call(call, described[name], possible, language) for call in left]
        if "" not in reasons:
            return reasons[0] if len(calls) == 1 else f"no call is the expected one of {name}: {'; '.join(reasons)}"
        del left[reasons.index("")]
    return ""


def wrong_call(call: ToolCall, function: Mapping[str, Any], possible: Mapping[str, Any], language: str) -> str:
    """Whether this is a call of the function with one of the `possible` values of each parameter."""
    name = tool_name(function["name"])
    if call.name != name:
        return f"{call.name} is called instead of {name}"
    if call.arguments is None:
        return f"the arguments of {name} are not a JSON object"
    properties, required = function["parameters"]["properties"], function["parameters"]["required"]
    needed = [*required, *(parameter for parameter, values in possible.items() if OPTIONAL not in values)]
    for parameter in needed:
        if parameter not in call.arguments:
            return f"{name} is called without {parameter}"
    for parameter, value in call.arguments.items():
        if parameter not in properties or parameter not in possible:
            return f"{name} is called with {parameter}, which is not expected"
        reason = wrong_value(value, properties[parameter], possible[parameter], language)
        if reason:
            return f"{parameter} of {name} {reason}"
    return ""


def wrong_value(value: Any, parameter: Mapping[str, Any], possible: Sequence[Any], language: str) -> str:
    """Whether a value has the type of its parameter and is one of the possible ones.

    A value may also have the type of the possible ones where the description has another: they are then names of variables,
    or null, and the value has to be exactly one of them.
    """
    kind, item_kind = _kinds(parameter, language)
    if language != PYTHON and not isinstance(value, str):
        return f"is {_shown(value)}, not a string of {language}"
    value = _read(value, parameter, language)
    answer_kind = _kind_of(possible)
    if type(value) not in (kind, answer_kind):
        return f"is {_shown(value)}, not of type {parameter['type']}"
    if isinstance(value, list) and item_kind and not any(_has_items(value, item_kind, answer) for answer in possible):
        return f"is {_shown(value)}, not a list of {_item_type(parameter)}"
    exactly = answer_kind not in (None, kind)
    right = value in possible if exactly else _is_possible(value, kind, item_kind, possible)
    return "" if right else f"is {_shown(value)}, not one of {_shown(list(possible))}"


def _kinds(parameter: Mapping[str, Any], language: str) -> tuple[type, type | None]:
    """The Python type of a parameter, and that of its items where it is a list. Texts stand for all other types."""
    kinds, items = _TYPES[language], _item_type(parameter)
    kind = kinds.get(parameter["type"], str)
    return kind, kinds.get(items, str) if items is not None and kind is list else None


def _item_type(parameter: Mapping[str, Any]) -> str | None:
    items = parameter.get("items", {}).get("type")
    return items if parameter["type"] in _WITH_ITEMS else None


def _read(value: Any, parameter: Mapping[str, Any], language: str) -> Any:
    """A value of source code, or of JSON, where a float may be written as a whole number."""
    if language != PYTHON:
        return _READERS[language](value, parameter["type"], _item_type(parameter))
    return _as_float(value) if parameter["type"] == "float" and type(value) is int else value


def _is_possible(value: Any, kind: type, item_kind: type | None, possible: Sequence[Any]) -> bool:
    if kind is dict:
        return any(_is_object(value, answer) for answer in possible)
    if kind is list and item_kind is dict:
        return any(_are_objects(value, answer) for answer in possible)
    if kind is list:
        return any(_normal_items(value) == _normal_items(answer) for answer in possible if isinstance(answer, (list, str)))
    if kind is str:
        return _normal(value) in [_normal(answer) for answer in possible if isinstance(answer, str)]
    return value in possible


def _is_object(value: Any, answer: Any) -> bool:
    """Whether each key has one of its possible values, and no other is missing."""
    if not isinstance(value, dict) or not isinstance(answer, dict):
        return False
    if not all(key in answer and _normal(part) in _normal_items(answer[key]) for key, part in value.items()):
        return False
    return all(key in value or OPTIONAL in values for key, values in answer.items())


def _are_objects(values: Sequence[Any], answers: Any) -> bool:
    """In the order of the answer. The mark of an optional parameter is an empty list, too."""
    return len(values) == len(answers) and all(map(_is_object, values, answers))


def _has_items(values: Sequence[Any], kind: type, answer: Any) -> bool:
    """Whether all elements are of this type, or of that of the answer's elements. Only a list says what is possible."""
    return not isinstance(answer, list) or all(type(value) in (kind, _kind_of(answer)) for value in values)


def _kind_of(possible: Sequence[Any]) -> type | None:
    """The type of the first possible value; None where the parameter can only be left out."""
    return next((type(answer) for answer in possible if answer != OPTIONAL), None)


def _normal(value: Any) -> Any:
    """A text without case, spaces and punctuation; other values as they are."""
    return value.translate(_IGNORED).lower() if isinstance(value, str) else value


def _normal_items(values: Sequence[Any]) -> list[Any]:
    return [_normal(value) for value in values]


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
