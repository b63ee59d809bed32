"""Calls of tools, as backends make them and as the record has them."""

from __future__ import annotations

import pytest

from mill.api.tools import ToolCall


@pytest.mark.parametrize("arguments", [{"a": 1, "b": ["x"]}, '{"a": 1, "b": ["x"]}'], ids=["object", "text"])
def test_a_call_made_in_python_survives_the_record(arguments: object) -> None:
    call = ToolCall("add", arguments, id="7")  # type: ignore[arg-type]
    assert call.arguments == {"a": 1, "b": ["x"]}
    assert ToolCall.from_dict(call.to_dict()) == call


def test_arguments_that_are_no_object_are_malformed() -> None:
    for text in ("[1]", "{", "null", "7"):
        assert ToolCall("add", text).arguments is None  # type: ignore[arg-type]
    assert ToolCall("add").arguments == {} == ToolCall.from_dict(ToolCall("add").to_dict()).arguments
