"""Functions of BFCL as tools, and the leaderboard's rules for calls: name, parameters and values are compared with the
possible ones; nothing is executed.

Each function returns why a call is wrong, as text; it is empty where the call is right.

Values that a model writes as source code of Java or JavaScript are read in the forms that the leaderboard reads. A text that
has none of the forms of its type is returned as it is: it may be the name of a variable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mill.api.tools import Tool, ToolCall

PYTHON, JAVA, JAVASCRIPT = "Python", "Java", "JavaScript"
_SYNTAX = {PYTHON: "Python 3", JAVA: "Java 8 SDK", JAVASCRIPT: "JavaScript"}
_LISTS = {JAVA: ("ArrayList", "Array"), JAVASCRIPT: ("array",)}
_JSON_TYPES = {
    "string": "string",
    "integer": "integer",
    "float": "number",
    "boolean": "boolean",
    "array": "array",
    "tuple": "array",
    "dict": "object",
    "any": "string",
}

Schema = dict[str, Any]


def tool_name(name: str) -> str:
    """APIs allow no dots in a tool's name, so the leaderboard writes underscores."""
    return name.replace(".", "_")


def tools_of(functions: Sequence[Mapping[str, Any]], language: str) -> tuple[Tool, ...]:
    return tuple(_tool(function, language) for function in functions)


def _tool(function: Mapping[str, Any], language: str) -> Tool:
    description = f"{function['description']} Note that the provided function is in {_SYNTAX[language]} syntax."
    properties = function["parameters"]["properties"]
    if language == PYTHON:
        converted = _json_properties(properties)
    else:
        converted = {name: _as_text(schema, language) for name, schema in properties.items()}
    return Tool(
        tool_name(function["name"]), description, {**function["parameters"], "type": "object", "properties": converted}
    )


def _json_properties(properties: Mapping[str, Any]) -> Schema:
    return {name: _json_property(schema) for name, schema in properties.items()}


def _json_property(schema: Mapping[str, Any]) -> Schema:
    """A parameter in JSON schema; types that JSON lacks are named in its description, where the leaderboard does so."""
    found = _json_schema(schema)
    if schema.get("type") == "float":
        found |= {"format": "float", "description": f"{schema.get('description', '')} This is a float type value."}
    return found


def _json_schema(schema: Mapping[str, Any]) -> Schema:
    found = {**schema, "type": _JSON_TYPES.get(schema.get("type", ""), "string")}
    if "properties" in schema:
        found["properties"] = _json_properties(schema["properties"])
    elif "items" in schema:
        found["items"] = _json_schema(schema["items"])
    return found


def _as_text(schema: Mapping[str, Any], language: str) -> Schema:
    """A parameter of Java or JavaScript: a string of source code, whose description has the type."""
    kind = schema["type"]
    of_type = (
        f" This parameter can be of any type of {language} object in string representation."
        if kind == "any"
        else f" This is {language} {kind} type parameter in string representation."
    )
    found = {**schema, "type": "string", "description": schema["description"] + of_type}
    if kind in _LISTS[language]:
        items = found.pop("items")["type"]
        found["description"] += f" The list elements are of type {items}; they are not in string representation."
    if kind == "dict" and "properties" in found:
        entries = json.dumps(found.pop("properties"))
        found["description"] += (
            f" The dictionary entries have the following schema; they are not in string representation. {entries}"
        )
    return found


_WHOLE = r"-?\d+"
_DECIMAL = rf"{_WHOLE}(?:\.\d+)?"
_SCIENTIFIC = rf"{_DECIMAL}(?:[eE][+-]?\d+)?"
_BOOLEANS = {"true": True, "false": False}

# Type -> how a number of it is written, and what it is in Python.
_Numbers = dict[str, tuple[re.Pattern[str], Callable[[str], Any]]]
_JAVA_NUMBERS: _Numbers = {
    **dict.fromkeys(("byte", "short", "integer"), (re.compile(rf"({_WHOLE})$"), int)),
    "long": (re.compile(rf"({_WHOLE})[lL]$"), int),
    "float": (re.compile(rf"({_SCIENTIFIC})[fF]$"), float),
    "double": (re.compile(rf"({_SCIENTIFIC})$"), float),
}
_JAVASCRIPT_NUMBERS: _Numbers = {
    "integer": (re.compile(rf"({_WHOLE})$"), int),
    "Bigint": (re.compile(rf"({_WHOLE})n$"), int),
    "float": (re.compile(rf"({_DECIMAL})$"), float),
}

_ARRAY = re.compile(r"new\s+\w+\[\]\s*\{(.*?)\}")
_NEW_LIST = r"new\s+ArrayList<\w*>\("
_LISTED = re.compile(_NEW_LIST + r"Arrays\.asList\((.+?)\)\)")
_EXTENDED = re.compile(_NEW_LIST + r"\)\s*\{\{(.+?)\}\}", re.DOTALL)
_EMPTY_LIST = re.compile(_NEW_LIST + r"\)")
_ADDED = re.compile(r"add\((.+?)\)")
_HASH_MAP = re.compile(r"new\s+HashMap<[^()]*>\s*\(\)\s*(?:\{([^}]*)\})?")
_PUT = re.compile(r'put\("(.*?)",\s*(.*?)\)')

_JS_ROWS = re.compile(r"\[\s*\[.*?\]\s*\]|new\s+Array\(\s*\[.*?\]\s*\)")
_JS_ROW = re.compile(r"\[(.*?)\]")
_JS_ARRAY = re.compile(r"\[(.*?)\]|new\s+Array\((.*?)\)")
_JS_OBJECT = re.compile(r"\{(.*?)\}")
_JS_NEXT_ENTRY = re.compile(r",\s*(?=[^,]+:)")


def java_value(text: str, kind: str, items: str | None = None) -> Any:
    """`items` is the type of a collection's elements."""
    if kind in _JAVA_NUMBERS:
        return _number(text, *_JAVA_NUMBERS[kind])
    if kind == "boolean":
        return _BOOLEANS.get(text, text)
    if kind == "Array":
        found = _ARRAY.search(text)
        return [_java_item(item, items) for item in _split(found[1]) if item] if found else text
    if kind == "ArrayList":
        return _array_list(text, items)
    if kind == "HashMap":
        found = _HASH_MAP.search(text)
        return {key: _java_item(value.strip(), None) for key, value in _PUT.findall(found[1] or "")} if found else text
    return text


def _array_list(text: str, items: str | None) -> Any:
    if found := _LISTED.search(text):
        elements = _split(found[1])
    elif found := _EXTENDED.search(text):
        elements = [element.strip() for element in _ADDED.findall(found[1])]
    else:
        return [] if _EMPTY_LIST.search(text) else text
    quoted = items in ("char", "String")
    return [element[1:-1] if quoted else _java_item(element, items) for element in elements]


def _java_item(text: str, kind: str | None) -> Any:
    """An element; without a type its form decides."""
    if kind is not None:
        return java_value(text, kind)
    for number in ("long", "float"):
        if (value := _number(text, *_JAVA_NUMBERS[number])) is not text:
            return value
    return _plain(text, quotes='"')


def javascript_value(text: str, kind: str, items: str | None = None) -> Any:
    """`items` is the type of an array's elements."""
    if kind in _JAVASCRIPT_NUMBERS:
        return _number(text, *_JAVASCRIPT_NUMBERS[kind])
    if kind == "Boolean":
        return _BOOLEANS.get(text, text)
    if kind == "String":
        return _unquoted(text, quotes="\"'")
    if kind == "array":
        return _javascript_array(text.strip(), items)
    if kind == "dict":
        return _javascript_object(text.strip())
    return text


def _javascript_array(text: str, items: str | None = None) -> Any:
    """An array, or an array of arrays whose elements' form decides."""
    if found := _JS_ROWS.match(text):
        first, *others = _JS_ROW.findall(found[0])
        rows = [first.strip().removeprefix("["), *others]  # without the outer bracket
        return [[_javascript_item(item) for item in _split(row)] for row in rows]
    found = _JS_ARRAY.match(text)
    if found is None:
        return text
    inside = (found[1] or found[2] or "").strip()
    elements = _split(inside) if inside else []
    return [_javascript_item(element) if items is None else javascript_value(element, items) for element in elements]


def _javascript_object(text: str) -> Any:
    """Entries up to the first closing brace: the leaderboard reads no objects within objects."""
    found = _JS_OBJECT.match(text)
    if found is None:
        return text
    entries, rest = {}, found[1]
    while ":" in rest:
        key, _, rest = rest.partition(":")
        value, *others = _JS_NEXT_ENTRY.split(rest, maxsplit=1)
        value = value.strip()
        is_array = value.startswith("[") and value.endswith("]")
        entries[key.strip().strip("'\"")] = _javascript_array(value) if is_array else _javascript_item(value.strip("'\""))
        rest = others[0] if others else ""
    return entries


def _javascript_item(text: str) -> Any:
    return _plain(text.strip(), quotes="\"'")


def _split(text: str) -> list[str]:
    return [element.strip() for element in text.split(",")]


def _number(text: str, pattern: re.Pattern[str], convert: Callable[[str], Any]) -> Any:
    found = pattern.match(text)
    try:
        return convert(found[1]) if found else text
    except ValueError:  # more digits than Python converts
        return text


def _plain(text: str, quotes: str) -> Any:
    """A boolean, a quoted text or a number by its form, else the text."""
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if (inside := _unquoted(text, quotes)) is not text:
        return inside
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def _unquoted(text: str, quotes: str) -> str:
    return text[1:-1] if any(text.startswith(quote) and text.endswith(quote) for quote in quotes) else text


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
        # In the order of the answer. The mark of an optional parameter is an empty list, too.
        return any(len(value) == len(answer) and all(map(_is_object, value, answer)) for answer in possible)
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
