"""BFCL's descriptions of functions as tools: the JSON schemas that the leaderboard gives to function-calling models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mill.api.tools import Tool

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
