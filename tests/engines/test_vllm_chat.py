"""A real vLLM server with its parsers for reasoning and tool calls. The small model reasons and calls tools badly: what
counts is that all of it is handled."""

from __future__ import annotations

from pathlib import Path

import pytest

from mill.api.errors import CannotServe
from mill.api.message import Message
from mill.api.request import GENERATE, MULTI_ROUND, Request, generation_options
from mill.api.task import RenderSettings
from mill.api.tools import Tool, ToolCall
from mill.models.openai_compat.model import OpenAICompatModel

DIALOG = (Message("user", "Count to three."),)
ADD = Tool("add", "Adds two numbers.", {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}})


@pytest.fixture(scope="module")
def model(vllm_server: str) -> OpenAICompatModel:
    model = OpenAICompatModel("smollm2", vllm_server, chat=True)
    model.ready()
    return model


def request(settings: RenderSettings | None = None, kind: str = GENERATE, **more: object) -> Request:
    made = Request(kind, DIALOG, options=generation_options(max_gen_toks=24, until=["zzz"]), **more)  # type: ignore[arg-type]
    return (settings or RenderSettings()).served(made)


def test_reasoning_that_does_not_end_is_no_answer(model: OpenAICompatModel) -> None:
    (response,) = model.generate_until([request()])
    assert response.error is None and response.reasoning and response.text == ""
    assert response.truncated_reasoning and 0 < (response.output_tokens or 0) <= 24


def test_reasoning_is_switched_off_by_what_the_servers_template_knows(model: OpenAICompatModel) -> None:
    off = request(RenderSettings(reasoning_effort="none"))
    model.check(off)
    assert model._template_fields == {"chat_template_kwargs": {"enable_thinking": False}}
    (response,) = model.generate_until([off])
    assert response.error is None
    with pytest.raises(CannotServe, match="reasoning_effort=high changes nothing"):
        model.check(request(RenderSettings(reasoning_effort="high")))


def test_tools_and_the_messages_about_them_are_accepted(model: OpenAICompatModel, tmp_path: Path) -> None:
    model.check(request(tools=(ADD,)))
    call = ToolCall.parse("add", '{"a": 1, "b": 2}', "call00000")
    turns = (Message("assistant", "", tool_calls=(call,)), Message("tool", "3", tool_call_id="call00000", name="add"))
    dialog = Request(MULTI_ROUND, (*DIALOG, *turns), options=generation_options(max_gen_toks=24), tools=(ADD,))
    for response in (*model.generate_until([request(tools=(ADD,))]), *model.generate_until_multi_round([dialog])):
        assert response.error is None
        assert all(isinstance(made, ToolCall) for made in response.tool_calls)


def test_an_answer_that_the_prompt_begins_is_continued(model: OpenAICompatModel, vllm_server: str) -> None:
    begun = Request(GENERATE, (*DIALOG, Message("assistant", "One, two,")), options=generation_options(max_gen_toks=8))
    text = "<|im_start|>user\nCount to three.<|im_end|>\n<|im_start|>assistant\nOne, two,"
    model.check(begun)
    (response,) = model.generate_until([begun])
    (whole,) = OpenAICompatModel("smollm2", vllm_server).generate_until([Request(GENERATE, text, options=begun.options)])
    assert response.reasoning == whole.text and whole.output_tokens == 8
