"""Answers to questions of BFCL: the right calls, made from the possible answers, and calls with one mistake each."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mill.api.task import Sample
from mill.api.tools import ToolCall
from mill.tasks.bfcl.checker import JAVA, OPTIONAL, PYTHON, tool_name

Calls = list[ToolCall]
Doc = Mapping[str, Any]


def right_calls(sample: Sample, language: str) -> Calls:
    """The expected calls, each parameter with the first of its possible values."""
    functions = {function["name"]: function["parameters"] for function in sample.doc["function"]}
    calls = []
    for answer in sample.doc["ground_truth"]:
        ((name, possible),) = answer.items()
        properties, required = functions[name]["properties"], functions[name]["required"]
        arguments = {
            parameter: value if language == PYTHON else written(value, properties[parameter], language)
            for parameter, values in possible.items()
            if parameter in properties
            for value in _chosen(values, needed=parameter in required)
        }
        calls.append(ToolCall.parse(tool_name(name), arguments))
    return calls


def _chosen(values: Sequence[Any], *, needed: bool) -> list[Any]:
    """The first possible value, if any: a parameter is left out where nothing but null is possible beside that."""
    usable = [value for value in values if value not in (OPTIONAL, None)]
    if not usable and (needed or OPTIONAL not in values):
        usable = list(values)
    return [_concrete(value) for value in usable[:1]]


def _concrete(value: Any) -> Any:
    """An object has a list of possible values for each key; an object within it is as it is."""
    if isinstance(value, dict):
        return {key: values[0] for key, values in value.items() if isinstance(values, list) and values[0] != OPTIONAL}
    if isinstance(value, list):
        return [_concrete(part) for part in value]
    return value


def written(value: Any, parameter: Doc, language: str) -> str:
    """A value as source code of its type."""
    return _in_java(value, parameter) if language == JAVA else _in_javascript(value, parameter)


def _in_java(value: Any, parameter: Doc) -> str:
    kind, items = parameter["type"], parameter.get("items", {}).get("type")
    if isinstance(value, list) and kind == "Array":
        return f"new {items}[]{{{', '.join(_java_item(part, items, quoted=False) for part in value)}}}"
    if isinstance(value, list):
        quoted = items in ("String", "char")
        return f"new ArrayList<>(Arrays.asList({', '.join(_java_item(part, items, quoted=quoted) for part in value)}))"
    if isinstance(value, dict):
        puts = " ".join(f'put("{key}", {_java_item(part, None, quoted=True)});' for key, part in value.items())
        return f"new HashMap<String, Object>() {{{{ {puts} }}}}"
    return _java_item(value, kind, quoted=False)


def _java_item(value: Any, kind: str | None, *, quoted: bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"' if quoted else value
    return f"{value}L" if kind == "long" else f"{value}f" if kind == "float" else str(value)


def _in_javascript(value: Any, parameter: Doc) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_javascript_item(part) for part in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_in_javascript_entry(part)}' for key, part in value.items())}}}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _in_javascript_entry(value: Any) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, list) else _javascript_item(value)


def _javascript_item(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else str(value).lower()


Mutation = Callable[[Calls, Sample, random.Random], Calls | None]
"""Calls with one mistake; None where the sample has none of this kind."""


def wrong_name(calls: Calls, sample: Sample, draw: random.Random) -> Calls | None:
    return _changed(calls, draw, lambda call: replace(call, name=f"{call.name}_2"))


def missing_parameter(calls: Calls, sample: Sample, draw: random.Random) -> Calls | None:
    required = {tool_name(one["name"]): one["parameters"]["required"] for one in sample.doc["function"]}
    able = [index for index, call in enumerate(calls) if set(required[call.name]) & set(call.arguments or {})]
    if not able:
        return None
    index = draw.choice(able)
    arguments = dict(calls[index].arguments or {})
    del arguments[draw.choice([name for name in required[calls[index].name] if name in arguments])]
    return _at(calls, index, ToolCall.parse(calls[index].name, arguments))


def wrong_value(calls: Calls, sample: Sample, draw: random.Random) -> Calls | None:
    return _with_argument(calls, draw, _other_value)


def wrong_type(calls: Calls, sample: Sample, draw: random.Random) -> Calls | None:
    return _with_argument(calls, draw, lambda value: {"of": {"another": "type"}} if not isinstance(value, dict) else [value])


def unknown_parameter(calls: Calls, sample: Sample, draw: random.Random) -> Calls | None:
    return _changed(calls, draw, lambda call: ToolCall.parse(call.name, {**(call.arguments or {}), "no_such_parameter": 1}))


def extra_call(calls: Calls, sample: Sample, draw: random.Random) -> Calls | None:
    return [*calls, draw.choice(calls)]


def no_call(calls: Calls, sample: Sample, draw: random.Random) -> Calls | None:
    return []


def malformed(calls: Calls, sample: Sample, draw: random.Random) -> Calls | None:
    return _changed(calls, draw, lambda call: ToolCall.parse(call.name, call.text[:-1]))


MISTAKES: dict[str, Mutation] = {
    mutation.__name__: mutation
    for mutation in (
        wrong_name,
        missing_parameter,
        wrong_value,
        wrong_type,
        unknown_parameter,
        extra_call,
        no_call,
        malformed,
    )
}


def perturbed(calls: Calls, sample: Sample, draw: random.Random) -> Calls | None:
    """One argument in another form, which may be right or wrong: a case for another checker to compare with."""
    return _with_argument(calls, draw, lambda value: perturbed_value(value, draw))


def perturbed_value(value: Any, draw: random.Random) -> Any:
    return draw.choice(_forms(value))


def shuffled(calls: Calls, sample: Sample, draw: random.Random) -> Calls | None:
    return draw.sample(calls, len(calls))


def _forms(value: Any) -> list[Any]:
    """Other spellings of a value, values near it and values of other types."""
    forms: list[Any] = [None, "", [], {}, [value], {"value": value}, str(value), True]
    if isinstance(value, str):
        forms += [value.upper(), value.replace(" ", ""), f" {value}.", f'"{value}"', f"'{value}'", f"{value}\n", value[:-1]]
        forms += [f"{value}L", f"{value}.0", f"{value}f", value.replace("'", '"'), value.replace(",", " ,"), value[1:]]
        forms += [f"[{value}]", f"{{{value}}}", f"new String[]{{{value}}}", f"new ArrayList<>() {{{{ add({value}); }}}}"]
    elif isinstance(value, (int, float)):
        forms += [float(value), int(value), -value, value + 1, [value, value]]
    elif isinstance(value, list):
        forms += [value[::-1], value[:-1], [*value, *value], [str(part) for part in value], [[part] for part in value]]
        forms += [[float(part) if isinstance(part, int) else part for part in value]]
        forms += [[part.upper() if isinstance(part, str) else part for part in value]]
    elif isinstance(value, dict):
        forms += [{key: [part] for key, part in value.items()}, dict(list(value.items())[1:]), [value, value]]
        forms += [{key: str(part).upper() for key, part in value.items()}]
    return forms


def _other_value(value: Any) -> Any:
    """A value of the same type that is no possible answer."""
    if isinstance(value, (int, float)):
        return value + 987654
    if isinstance(value, str):
        return "987654"
    if isinstance(value, list):
        return [*value, _other_value(value[0]) if value else "987654"]
    return {**value, "987654": 1}


def _with_argument(calls: Calls, draw: random.Random, change: Callable[[Any], Any]) -> Calls | None:
    """One argument is changed. Both values of a boolean may be possible, so none of those; nor null."""
    able = [
        (index, name)
        for index, call in enumerate(calls)
        for name, value in (call.arguments or {}).items()
        if value is not None and not isinstance(value, bool)
    ]
    if not able:
        return None
    index, name = draw.choice(able)
    arguments = dict(calls[index].arguments or {})
    return _at(calls, index, ToolCall.parse(calls[index].name, {**arguments, name: change(arguments[name])}))


def _changed(calls: Calls, draw: random.Random, change: Callable[[ToolCall], ToolCall]) -> Calls | None:
    index = draw.randrange(len(calls))
    return _at(calls, index, change(calls[index]))


def _at(calls: Calls, index: int, call: ToolCall) -> Calls:
    return [*calls[:index], call, *calls[index + 1 :]]
