"""Tools in chat templates of several families, and for templates that take none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mill.api.message import Message
from mill.api.request import MULTI_ROUND, Request, generation_options
from mill.api.tools import Tool, ToolCall
from tests.models.hf.test_reasoning import TURNS, with_template

ADD = Tool("add", "Adds two numbers.", {"type": "object", "properties": {"a": {"type": "number"}}})
CALL = ToolCall.parse("add", '{"a": 2}', "call00000")
DIALOG = (
    Message("system", "Be brief."),
    Message("user", "what is it ?"),
    Message("assistant", "", tool_calls=(CALL,)),
    Message("tool", "4", tool_call_id="call00000", name="add"),
)
# How each family's template writes tools, calls and results, shortened to those parts.
HERMES = (
    "{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools>{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% for c in m.tool_calls or [] %}"
    '<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}'
    "{% endfor %}<|assistant|>"
)
LLAMA = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}{% for m in messages %}"
    "<|{{ 'ipython' if m.role == 'tool' else m.role }}|>{{ m.content }}{% if m.tool_calls %}"
    '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}'
    "{% endif %}{% endfor %}<|assistant|>"
)
MISTRAL = (
    "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}{% for m in messages %}"
    "{% if m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}{{ raise_exception('nine characters') }}{% endif %}"
    "[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]{% else %}{{ m.content }}{% endif %}"
    "{% if m.tool_calls %}[TOOL_CALLS]{{ m.tool_calls | map(attribute='function') | list | tojson }}{% endif %}{% endfor %}"
)


def request(**more: Any) -> Request:
    return Request(MULTI_ROUND, DIALOG, options=generation_options(max_gen_toks=8), tools=(ADD,), **more)


@pytest.mark.parametrize(
    ("template", "call", "result"),
    [
        (HERMES, '<tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>', "<|tool|>4"),
        (LLAMA, '{"name": "add", "parameters": {"a": 2}}', "<|ipython|>4"),
        (MISTRAL, '[TOOL_CALLS][{"name": "add", "arguments": {"a": 2}}]', "[TOOL_RESULTS]4[/TOOL_RESULTS]"),
    ],
)
def test_a_template_gets_tools_calls_and_results(
    tiny_model: Path, tmp_path: Path, template: str, call: str, result: str
) -> None:
    model = with_template(tiny_model, tmp_path, template)
    model.check(request())
    prompt = model.rendered_prompt(request())
    assert '"description": "Adds two numbers."' in prompt and call in prompt and result in prompt
    assert prompt.index(call) < prompt.index(result)
    assert model.warnings() == []


def test_tools_are_described_to_a_template_that_takes_none(tiny_model: Path, tmp_path: Path) -> None:
    model = with_template(tiny_model, tmp_path, TURNS)
    (warning,) = model.check(request())
    prompt = model.rendered_prompt(request())
    assert prompt.startswith("<|system|>Be brief.\n\nYou may call these functions")
    assert '<|assistant|><tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>' in prompt
    assert "<|user|><tool_response>4</tool_response>" in prompt
    assert "takes no tools" in warning
    (response,) = model.generate_until_multi_round([request()])
    assert response.error is None
