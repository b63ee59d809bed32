"""Values that a model writes as source code of Java or JavaScript, in the forms that the leaderboard reads.

A text that has none of the forms of its type is returned as it is: it may be the name of a variable.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

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
        entries[key.strip().strip("'\"")] = _javascript_entry(value.strip())
        rest = others[0] if others else ""
    return entries


def _javascript_entry(text: str) -> Any:
    is_array = text.startswith("[") and text.endswith("]")
    return _javascript_array(text) if is_array else _javascript_item(text.strip("'\""))


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
