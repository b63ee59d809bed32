"""Tool calls in the text forms of chat templates, well formed and not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mill.models.tokens.tool_calls import MARKERS, split_tool_calls

ADD: dict[str, Any] = {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("text", "rest", "calls"),
    [
        ('<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>', "", [("add", ADD)]),
        (
            'Let me see.\n<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>\n'
            '<tool_call>{"name": "now", "arguments": {}}</tool_call>',
            "Let me see.",
            [("add", ADD), ("now", {})],
        ),
        ('<tool_call>{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": 2}"}</tool_call>', "", [("add", ADD)]),
        ('<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}', "", [("add", ADD)]),  # it ended before the tag
        ('<tool_call>{"name": "add", "arguments": {"a": 1, "b"</tool_call>', "", [("add", None)]),
        ("<tool_call>add 1 and 2</tool_call>", "", [("", None)]),
        ('<tool_call>{"name": "add", "arguments": [1, 2]}</tool_call>', "", [("add", None)]),
        ('{"name": "add", "parameters": {"a": 1, "b": 2}}', "", [("add", ADD)]),
        (
            '{"name": "add", "parameters": {"a": 1, "b": 2}}; {"name": "now", "parameters": {}}',
            "",
            [("add", ADD), ("now", {})],
        ),
        ('<|python_tag|>{"name": "add", "parameters": {"a": 1, "b": 2}}', "", [("add", ADD)]),
        ("<|python_tag|>print(3)", "", [("", None)]),
        ('[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1, "b": 2}}]', "", [("add", ADD)]),
        ('[TOOL_CALLS]add[ARGS]{"a": 1, "b": 2}[TOOL_CALLS]now[ARGS]{}', "", [("add", ADD), ("now", {})]),
        ('[TOOL_CALLS]add{"a": 1, "b": 2}', "", [("add", ADD)]),
        ('[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1, "b": 2}', "", [("add", None)]),
        ("[TOOL_CALLS]", "", [("", None)]),
        ('{"name": "Ann", "age": 3}', '{"name": "Ann", "age": 3}', []),  # an answer in JSON is no call
        ("The answer is 3.", "The answer is 3.", []),
        ("", "", []),
    ],
)
def test_calls_are_found_in_the_form_of_each_family(text: str, rest: str, calls: list[tuple[str, Any]]) -> None:
    found_rest, found = split_tool_calls(text)
    assert found_rest == rest and [(call.name, call.arguments) for call in found] == calls


@given(st.lists(st.sampled_from([*MARKERS, "{", "}", '"name"', ":", "x", "[", "]", ";", '{"name": "f", "parameters": {}}'])))
def test_no_text_breaks_the_parser(parts: list[str]) -> None:
    split_tool_calls("".join(parts))
