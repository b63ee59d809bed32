"""Reasoning and tool calls in the answers of servers: given beside the text, inside of it, in pieces, or malformed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mill.api.errors import CannotServe
from mill.api.message import Message
from mill.api.model import MillModel
from mill.api.request import GENERATE, Request, generation_options
from mill.api.response import Response
from mill.api.task import RenderSettings
from mill.api.tools import Tool
from mill.models.http import policy
from mill.models.spec.open import open_model
from tests.servers import FaultServer, events, status

DIALOG = (Message("user", "what is 2 + 2?"),)
ADD = Tool("add", "Adds two numbers.", {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}})


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy, "FIRST_PAUSE_S", 0.01)


def chat(message: dict[str, Any], finish: str = "stop", **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], **more}


def open_chat(server: FaultServer, stream: bool = False) -> MillModel:
    model = open_model(f"openai-compat[model=m,base_url={server.url},chat=true,stream={str(stream).lower()}]")
    model.ready()
    return model


def respond(
    answer: Any, *, until: tuple[str, ...] = (), stream: bool = False, **request: Any
) -> tuple[Response, FaultServer]:
    """The response of a model behind a server that answers every chat like this."""

    def serve(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        if path != "/v1/chat/completions":
            return status(404)
        return answer(body) if callable(answer) else answer

    with FaultServer(serve) as server:
        model = open_chat(server, stream)
        server.calls.clear()
        options = generation_options(max_gen_toks=64, until=until)
        (response,) = model.generate_until([Request(GENERATE, DIALOG, options=options, **request)])
    return response, server


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_beside_the_answer_is_stored_apart(field: str, stream: bool) -> None:
    if stream:
        pieces = ({field: "2 and "}, {field: "2"}, {"content": "4"})
        answer: Any = events(*map(event, pieces), event({}, "stop"))
    else:
        usage = {"prompt_tokens": 3, "completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 7}}
        answer = chat({"content": "4", field: "2 and 2"}, usage=usage)
    response, _ = respond(answer, stream=stream)
    assert (response.reasoning, response.text) == ("2 and 2", "4")
    assert stream or (response.output_tokens, response.reasoning_tokens) == (9, 7)


@pytest.mark.parametrize(
    ("message", "finish", "reasoning", "text"),
    [
        ({"content": "<think>2 and 2</think>\n\n4"}, "stop", "2 and 2", "4"),
        ({"content": "2 and 2</think>4"}, "stop", "2 and 2", "4"),
        ({"content": "4", "reasoning_content": ""}, "stop", None, "4"),
        ({"content": None, "reasoning_content": "2 and"}, "length", "2 and", ""),
        ({"content": "<think>2 and"}, "length", "2 and", ""),
        ({"content": None, "reasoning": ""}, "stop", None, ""),  # as vLLM answers where the model ends at once
    ],
)
def test_reasoning_is_found_wherever_a_server_puts_it(
    message: dict[str, Any], finish: str, reasoning: str | None, text: str
) -> None:
    response, _ = respond(chat(message, finish))
    assert (response.reasoning, response.text) == (reasoning, text)
    assert response.truncated_reasoning is (text == "" and reasoning is not None) and response.error is None


def test_an_answer_whose_reasoning_a_stop_string_ended_is_requested_again_without_it() -> None:
    def answer(body: dict[str, Any]) -> Any:
        text = "<think>first\n\nsecond</think>4\n\nmore"
        for stop in body.get("stop", []):
            text = text.partition(stop)[0]
        return chat({"content": text})

    response, server = respond(answer, until=("\n\n",))
    assert (response.reasoning, response.text) == ("first\n\nsecond", "4")
    assert [call[1].get("stop") for call in server.calls] == [["\n\n"], None]


def test_tool_calls_are_read_with_their_arguments() -> None:
    calls = [
        {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 2}'}},
        {"id": "b", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}},
        {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b"'}},
        {"id": "d", "type": "function", "function": {"name": "add", "arguments": "[1, 2]"}},
        {"id": "e", "type": "function", "function": {"name": "add"}},
    ]
    response, server = respond(chat({"content": None, "tool_calls": calls}, "tool_calls"), tools=(ADD,))
    assert response.error is None and response.text == "" and not response.empty
    assert [call.arguments for call in response.tool_calls] == [{"a": 2, "b": 2}, {"a": 1, "b": 2}, None, None, {}]
    assert [call.text for call in response.tool_calls][2] == '{"a": 1, "b"'
    assert server.calls[0][1]["tools"] == [ADD.to_dict()]


def test_calls_in_the_text_are_read_where_the_server_leaves_out_the_tools() -> None:
    """Its prompt is the same with and without tools, so they are described in the system message."""
    called = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 2}}</tool_call>'

    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        if path == "/apply-template":
            return {"prompt": "Count."}
        return chat({"content": f"Let me see. {called}"}) if path == "/v1/chat/completions" else status(404)

    with FaultServer(answer) as server:
        model = open_chat(server)
        request = Request(GENERATE, DIALOG, options=generation_options(), tools=(ADD,))
        model.check(request)
        (response,) = model.generate_until([request])
        sent = server.calls[-1][1]
    assert "tools" not in sent and ADD.description in sent["messages"][0]["content"]
    assert (response.text, [call.arguments for call in response.tool_calls]) == ("Let me see.", [{"a": 2, "b": 2}])


def event(delta: dict[str, Any], finish: str | None = None) -> str:
    return json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def streamed_calls(*parts: Any) -> Any:
    """A stream with each of these parts of calls in an event of its own."""
    return events(*(event({"tool_calls": [part]}) for part in parts), event({}, "tool_calls"))


def part(arguments: str, index: Any = None, name: str | None = "add", **more: Any) -> dict[str, Any]:
    return {"index": index, "function": {"name": name, "arguments": arguments}, **more}


@pytest.mark.parametrize(
    "parts",
    [
        [part('{"a": 1}', -1), part('{"a": 2}', 7)],
        [part('{"a": 2}', 10**30), part('{"a": 1}', -(10**30))],
        [part('{"a": ', 0, id="x"), part('{"a": 2}', 1, id="y"), part("1}", 0, name=None)],  # one in between
        [part('{"a": 1}', 0, id="x"), part('{"a": 2}', 0, id="y")],  # one index for all calls
        [part('{"a": 1}'), part('{"a": 2}')],
        [part('{"a": ', id="x"), part("1}", name=None), part('{"a": ', id="y"), part("2}", name=None)],
        [part('{"a": ', 0, id="x"), part("1}", 0, id="x"), part('{"a": ', 1, id="y"), part("2}", 1)],  # the name each time
        [part("", 0, id="x"), part('{"a": 1}', 0, name=None, id="z"), part('{"a": 2}', 1)],  # another id each time
    ],
)
def test_streamed_tool_calls_with_odd_indices_stay_apart(parts: list[dict[str, Any]]) -> None:
    response, _ = respond(streamed_calls(*parts), stream=True, tools=(ADD,))
    assert response.error is None
    assert [(call.name, call.arguments) for call in response.tool_calls] == [("add", {"a": 1}), ("add", {"a": 2})]


MALFORMED: dict[str, tuple[bool, Any, str]] = {
    "an index that is a text": (True, streamed_calls(part("{}", "0")), "tool_calls[0].index: expected int"),
    "a stream that ends in a call": (
        True,
        events(event({"tool_calls": [part('{"a": 2, ', 0)]}), finish=False),
        "no finish_reason",
    ),
    "no calls, streamed": (True, events(event({}, "tool_calls")), "the server's answer has no text"),
    "no calls": (False, chat({"content": None}, "tool_calls"), "the server's answer has no text"),
    "calls as a text": (False, chat({"content": "", "tool_calls": "add"}, "tool_calls"), "tool_calls: expected array"),
    "a function as a text": (
        False,
        chat({"content": "", "tool_calls": [{"function": "add"}]}, "tool_calls"),
        "tool_calls[0].function: expected object",
    ),
    "reasoning as a list": (False, chat({"content": "5", "reasoning_content": ["2"]}), "not a text"),
}


@pytest.mark.parametrize(("stream", "answer", "error"), MALFORMED.values(), ids=MALFORMED)
def test_calls_and_reasoning_of_another_shape_are_an_error(stream: bool, answer: Any, error: str) -> None:
    response, _ = respond(answer, stream=stream, tools=(ADD,))
    assert response.error is not None and error in response.error


def rendering(used: str) -> Any:
    """A server that shows its prompts, in which only one field or variable of the template makes a difference."""

    def serve(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        if path == "/apply-template":
            return {"prompt": f"Count. {body.get(used) or body.get('chat_template_kwargs', {}).get(used)}"}
        return chat({"content": "4"}) if path == "/v1/chat/completions" else status(404)

    return serve


@pytest.mark.parametrize(
    ("used", "settings", "sent"),
    [
        ("reasoning_effort", {"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        ("enable_thinking", {"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ("volume", {"chat_template_kwargs": {"volume": 3}}, {"chat_template_kwargs": {"volume": 3}}),
        ("enable_thinking", {"reasoning_effort": "low"}, None),
        ("enable_thinking", {"chat_template_kwargs": {"volume": 3}}, None),
    ],
)
def test_what_changes_a_servers_prompt_is_sent_and_the_rest_is_refused(
    used: str, settings: dict[str, Any], sent: dict[str, Any] | None
) -> None:
    request = RenderSettings(**settings).served(Request(GENERATE, DIALOG, options=generation_options()))
    with FaultServer(rendering(used)) as server:
        model = open_chat(server)
        if sent is None:
            with pytest.raises(CannotServe, match="change"):
                model.check(request)
            return
        model.check(request)
        model.generate_until([request])
        body = server.calls[-1][1]
    assert {name: body.get(name) for name in sent} == sent


def test_a_server_that_does_not_show_its_prompts_gets_the_effort_with_a_warning() -> None:
    request = RenderSettings(reasoning_effort="high").served(Request(GENERATE, DIALOG, options=generation_options()))
    answer = lambda server, path, body: chat({"content": "4"}) if path == "/v1/chat/completions" else status(404)  # noqa: E731
    with FaultServer(answer) as server:
        model = open_chat(server)
        model.check(request)
        model.generate_until([request])
        assert server.calls[-1][1]["reasoning_effort"] == "high"
    assert any("whether reasoning_effort has an effect is not known" in line for line in model.warnings())


def test_a_server_that_refuses_tools_is_refused_before_the_run() -> None:
    def answer(server: FaultServer, path: str, body: dict[str, Any]) -> Any:
        if path != "/v1/chat/completions":
            return status(404)
        return status(400, '"auto" tool choice requires a parser') if "tools" in body else chat({"content": "4"})

    with FaultServer(answer) as server:
        model = open_chat(server)
        with pytest.raises(CannotServe, match=r"refuses tools.*auto"):
            model.check(Request(GENERATE, DIALOG, options=generation_options(), tools=(ADD,)))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("finish", "whole"), [("length", False), ("tool_calls", True)])
def test_a_call_that_the_token_limit_cut_before_its_arguments_is_malformed(stream: bool, finish: str, whole: bool) -> None:
    message = {"content": "", "tool_calls": [part("", 0)]}
    given = events(event(message, finish)) if stream else chat(message, finish)
    response, _ = respond(given, stream=stream, tools=(ADD,))
    assert [call.arguments for call in response.tool_calls] == [{} if whole else None]
