"""vLLM's own parsers of reasoning and tool calls, by name, for models whose marks mill does not read itself."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mill.api.errors import SpecError, UnknownName
from mill.api.request import MULTI_ROUND, Request
from mill.api.tools import Tool, ToolCall
from mill.models.tokens.reasoning import GeneratedText, cut_at_stops, read_text
from mill.models.tokens.tool_calls import split_tool_calls
from mill.support.terminal import describe

# Modules of vLLM, those of older versions last.
_REASONING = ("vllm.reasoning",)
_TOOLS = ("vllm.tool_parsers", "vllm.entrypoints.openai.tool_parsers")
_PROTOCOL = ("vllm.entrypoints.openai.chat_completion.protocol", "vllm.entrypoints.openai.protocol")


@dataclass(frozen=True)
class Parsers:
    """The names of the parsers; None leaves it to mill to read the text."""

    reasoning: str | None = None
    tool_calls: str | None = None

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.tool_calls)

    @property
    def names(self) -> dict[str, str]:
        """As in a spec."""
        given = {"reasoning_parser": self.reasoning, "tool_call_parser": self.tool_calls}
        return {name: value for name, value in given.items() if value}

    def check(self, tokenizer: Any) -> None:
        """Refuse unknown names, and parsers whose marks the tokenizer lacks, before the engine starts."""
        request = Request(MULTI_ROUND, "", tools=(Tool("any", "", {}),))
        try:
            self._adjusted(request, tokenizer)
        except (RuntimeError, ValueError) as error:
            parsers = " and ".join(f"{name}={value}" for name, value in self.names.items())
            raise SpecError(f"{parsers} cannot read the answers of this model: {describe(error)}") from error

    def check_request(self, request: Request) -> None:
        if self.reasoning and request.options.get("reasoning_tags") is not None:
            raise SpecError(f"--reasoning_tags has no effect with reasoning_parser={self.reasoning}: leave out one of them")

    def skips_special_tokens(self, request: Request, tokenizer: Any) -> bool:
        """Whether the engine may leave out special tokens: some parsers look for them."""
        return bool(getattr(self._adjusted(request, tokenizer), "skip_special_tokens", True))

    def read(self, request: Request, text: str, stops: Sequence[str], tokenizer: Any, *, opened: bool) -> GeneratedText:
        """A generated text, as the engine detokenized it, as an answer."""
        if self.reasoning:
            found, content = self._reasoning_parser(request, tokenizer).extract_reasoning(text, _chat(request))
            content, stopped = cut_at_stops(content or "", stops)
            answer = GeneratedText(content, found or None, stopped)
        else:
            answer = read_text(replace(request, tools=()), text, stops, opened=opened)
        return self._with_calls(answer, request, tokenizer) if request.tools else answer

    def _with_calls(self, answer: GeneratedText, request: Request, tokenizer: Any) -> GeneratedText:
        if not self.tool_calls:
            text, calls = split_tool_calls(answer.text)
            return replace(answer, text=text, tool_calls=calls)
        chat = _chat(request)
        found = self._tool_parser(chat, tokenizer).extract_tool_calls(answer.text, request=chat)
        if not found.tools_called:
            return answer
        calls = tuple(ToolCall.parse(call.function.name, call.function.arguments) for call in found.tool_calls)
        return replace(answer, text=found.content or "", tool_calls=calls)

    def reasoning_tokens(self, request: Request, ids: Sequence[int], tokenizer: Any) -> int | None:
        """None where the parser cannot count them, or the tokens are read by mill."""
        return self._reasoning_parser(request, tokenizer).count_reasoning_tokens(ids) or None if self.reasoning else None

    def _adjusted(self, request: Request, tokenizer: Any) -> Any:
        chat = _chat(request)
        if self.tool_calls and request.tools:
            chat = self._tool_parser(chat, tokenizer).adjust_request(chat)
        if self.reasoning:
            adjust = getattr(self._reasoning_parser(request, tokenizer), "adjust_request", None)  # not in older versions
            chat = adjust(chat) if adjust is not None else chat
        return chat

    def _reasoning_parser(self, request: Request, tokenizer: Any) -> Any:
        kind = _find(_REASONING, "ReasoningParserManager", "reasoning parser", self.reasoning or "")
        return _made(kind, tokenizer, {"chat_template_kwargs": dict(request.options.get("chat_template_kwargs", {}))})

    def _tool_parser(self, chat: Any, tokenizer: Any) -> Any:
        kind = _find(_TOOLS, "ToolParserManager", "tool call parser", self.tool_calls or "")
        return _made(kind, tokenizer, {"tools": chat.tools})


def _find(modules: Sequence[str], manager: str, what: str, name: str) -> Any:
    registry = getattr(_module(modules), manager)
    names = registry.list_registered()
    if name not in names:
        raise UnknownName(f"{what} of vLLM", name, names, hint=f"vLLM has {', '.join(names)}")
    return registry.get_tool_parser(name) if manager.startswith("Tool") else registry.get_reasoning_parser(name)


def _module(names: Sequence[str]) -> Any:
    for name in names[:-1]:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    return importlib.import_module(names[-1])


def _made(kind: Any, tokenizer: Any, more: Mapping[str, Any]) -> Any:
    """A parser for one response, with those arguments that this version of it takes."""
    parameters = inspect.signature(kind).parameters
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    return kind(tokenizer, **{name: value for name, value in more.items() if takes_any or name in parameters})


def _chat(request: Request) -> Any:
    """A request as vLLM's server would get it."""
    messages = [] if isinstance(request.context, str) else [message.to_json() for message in request.context]
    tools = {"tools": [tool.to_dict() for tool in request.tools], "tool_choice": "auto"} if request.tools else {}
    return _module(_PROTOCOL).ChatCompletionRequest(messages=messages, model="", **tools)
