"""A real vLLM server with its parsers for reasoning and tool calls. The small model reasons and calls tools badly: what
counts is that all of it is handled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mill.api.errors import CannotServe
from mill.api.message import Message
from mill.api.request import GENERATE, MULTI_ROUND, Request, generation_options
from mill.api.task import RenderSettings
from mill.api.tools import Tool, ToolCall
from mill.models.openai_compat import OpenAICompatModel
from tests.engines.prepared import ENVIRONMENT, engine, with_thinking_tokens
from tests.servers import free_port, serving

DIALOG = (Message("user", "Count to three."),)
ADD = Tool("add", "Adds two numbers.", {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}})
# Thinks unless that is switched off; shows tools, calls and their results.
TEMPLATE = (
    "{% if tools %}<|im_start|>system\nTools: {{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    '<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}'
    "<|im_end|>\n{% endfor %}<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAICompatModel]:
    python, port = engine("vllm") / "python", free_port()
    folder = with_thinking_tokens(tmp_path_factory.mktemp("model") / "smollm2")
    template = folder / "chat.jinja"
    template.write_text(TEMPLATE)
    options = ["--model", str(folder), "--served-model-name", "smollm2", "--dtype", "float32", "--max-model-len", "512"]
    parsers = ["--reasoning-parser", "deepseek_r1", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    server = [str(python), "-m", "vllm.entrypoints.openai.api_server", *options, *parsers, "--enforce-eager"]
    with serving(ENVIRONMENT, *server, "--chat-template", str(template), "--host", "127.0.0.1", "--port", str(port)):
        model = OpenAICompatModel("smollm2", f"http://127.0.0.1:{port}", chat=True)
        model.ready(240)
        yield model


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
