"""The responses of servers with the OpenAI API: their schemas, and how text, tool calls, token counts and log-probabilities
are read from them. Fields that are not named here are not read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import msgspec

from mill.api.errors import ModelError
from mill.api.request import Request
from mill.api.response import Response, Token
from mill.api.tools import ToolCall
from mill.models.http.client import Reply
from mill.models.http.failures import Failure, log_probability, raise_reported, shaped, shown, token_count
from mill.models.tokens.reasoning import read_text
from mill.support.terminal import one_line
from mill.support.validate import convert

LONGEST_NAME = 100  # of a provider, or of the state of its system

Id = Annotated[int, msgspec.Meta(ge=0)]


class TopToken(msgspec.Struct):
    """One of the top_logprobs at a position of a chat completion; llama-server adds ids."""

    token: str
    logprob: float
    id: int | None = None


class ChatToken(TopToken):
    top_logprobs: list[TopToken] | None = None


class Logprobs(msgspec.Struct):
    """Log-probabilities of tokens: chat's list under `content`, or completions' parallel lists."""

    content: list[ChatToken] | None = None
    tokens: list[str | int] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None


class PromptToken(msgspec.Struct):
    logprob: float
    rank: int | None = None


class PromptTokens(msgspec.Struct):
    """vLLM's `prompt_logprobs`: at each position but the first, tokens by id."""

    rows: list[dict[str, PromptToken] | None]


class FunctionCall(msgspec.Struct):
    name: str | None = None
    arguments: Any = None


class CalledTool(msgspec.Struct):
    """A call of a tool, or a part of one in an event of a stream."""

    function: FunctionCall = msgspec.field(default_factory=FunctionCall)
    id: str | None = None
    index: int | None = None


class ChatMessage(msgspec.Struct):
    content: str | None = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: list[CalledTool] | None = None


class Choice(msgspec.Struct):
    index: int | None = None
    text: str | None = None
    message: ChatMessage | None = None
    delta: ChatMessage | None = None
    finish_reason: str | None = None
    logprobs: Any = None
    prompt_logprobs: Any = None
    error: Any = None


class Completion(msgspec.Struct):
    """A whole response, or an event of a stream: events without choices have only token counts."""

    choices: list[Choice] | None = None
    usage: Any = None
    model: Any = None
    system_fingerprint: Any = None
    provider: Any = None


class ServedModel(msgspec.Struct):
    """A model in /v1/models. Servers give the context length under several names."""

    id: str | None = None
    root: str | None = None
    parent: str | None = None
    owned_by: Any = None
    max_model_len: Any = None
    meta: Any = None
    aliases: Any = None


class ServedModels(msgspec.Struct):
    data: list[ServedModel]


class TokenIds(msgspec.Struct):
    """The response of /tokenize."""

    tokens: list[Id]


def read_choice(body: Any) -> tuple[Completion, Choice]:
    """A whole response and its choice of index 0; only one was requested, other choices are ignored."""
    if not isinstance(body, dict) or not body.get("choices"):
        raise Failure("garbage", f"the server's answer has no choices: {shown(body, 120)}")
    completion = shaped(body, Completion, "the server's answer")
    return completion, first_choice(completion.choices or [])


def first_choice(choices: list[Choice]) -> Choice:
    for position, choice in enumerate(choices):
        if (position if choice.index is None else choice.index) == 0:
            return choice
    raise Failure("garbage", f"the server's answer has no choice of index 0, but {choices[0].index}")


def read_logprobs(choice: Choice) -> Logprobs | None:
    """The log-probabilities; None if the server gives none, for which some send an empty list."""
    if not isinstance(choice.logprobs, dict):
        return None
    return shaped(choice.logprobs, Logprobs, "logprobs of the server's answer")


def read_models(listed: Any, url: str) -> dict[str, ServedModel]:
    """The models that a server lists, by name."""
    if not isinstance(listed, dict) or not isinstance(listed.get("data"), list):
        raise ModelError(f"{url} returned no list of models: {shown(listed, 80)}")
    models: ServedModels = convert(listed, ServedModels, url, ModelError)
    return {entry.id: entry for entry in models.data if entry.id}


def read_window(entry: ServedModel, url: str) -> int | None:
    """The context length, if the server gives it; 0 means that it does not."""
    meta = entry.meta if isinstance(entry.meta, dict) else {}
    length = entry.max_model_len or meta.get("n_ctx_train")
    if length and (type(length) is not int or length < 2):
        raise ModelError(f"{url}: the context length of {entry.id} is {shown(length, 40)!r}: give max_context_length=...")
    return length or None


STOP, LENGTH, TOOL_CALLS, CONTENT_FILTER = "stop", "length", "tool_calls", "content_filter"

_SPELLINGS = {
    STOP: "stop eos eos_token end_turn stop_sequence stop_token end_of_turn complete completed finish finished",
    LENGTH: "length max_tokens max_output_tokens max_new_tokens model_length limit model_context_window_exceeded",
    TOOL_CALLS: "tool_calls function_call tool_use tool_call",
    CONTENT_FILTER: "content_filter content_filtered safety refusal recitation blocklist prohibited_content spii "
    "guardrail_intervened sensitive",
}
_REASONS = {name: reason for reason, names in _SPELLINGS.items() for name in names.split()}
_NONE = ("", "null", "none")


def read_finish(choice: Choice) -> str | None:
    """OpenAI's finish_reason; None if the server gives none. A failed or cancelled response raises Failure."""
    raise_reported({"error": choice.error})
    reason = (choice.finish_reason or "").strip().lower()
    if reason in _NONE:
        return None
    if reason not in _REASONS:
        raise Failure("reported", f"the server ended the answer with finish_reason {shown(choice.finish_reason, 60)!r}")
    return _REASONS[reason]


TOKEN_ID = "token_id:"  # how vLLM writes tokens with return_tokens_as_token_ids
INVALID_COUNTS = "the server's token counts are not valid and are left out"


def read_answer(reply: Reply, request: Request, warn: Callable[[str], None], begun: str = "") -> Response:
    """A completion or a chat completion, cut at its stop strings, without the text that the prompt began it with."""
    completion, choice = read_choice(reply.body)
    finish, reasoning = read_finish(choice), read_reasoning(choice.message)
    calls = read_tool_calls(choice, finish)
    text = _text_of(choice, finish, answered=bool(calls) or reasoning is not None).removeprefix(begun)
    prompt, output = read_counts(completion.usage, ("prompt_tokens", "completion_tokens"), warn)
    response = read_text(
        request,
        text,
        request.options["until"],
        finish=finish,
        reasoning_tokens=_read_detail(completion.usage, "completion_tokens_details", "reasoning_tokens"),
        cached_tokens=_read_detail(completion.usage, "prompt_tokens_details", "cached_tokens"),
        tokens=read_tokens(read_logprobs(choice)),
        prompt_tokens=prompt,
        output_tokens=output,
        seconds=reply.seconds,
        first_token_s=reply.first_token_s,
    )
    return replace(
        response,
        reasoning=reasoning or response.reasoning,
        tool_calls=calls or response.tool_calls,
        system_fingerprint=_name(completion.system_fingerprint),
        provider=_name(completion.provider),
    )


def _name(given: Any) -> str | None:
    return one_line(given[:LONGEST_NAME]) if isinstance(given, str) and given else None


def _text_of(choice: Choice, finish: str | None, *, answered: bool) -> str:
    """A text that a content filter withheld is empty, and so is that of a message with reasoning or tool calls alone. A
    missing one, or an empty one without finish_reason, is an error."""
    text = choice.text if choice.text is not None or choice.message is None else choice.message.content
    if text is None and (finish == CONTENT_FILTER or answered):
        return ""
    if text is None or (not text and finish is None):
        raise Failure("garbage", f"the server's answer has no text (finish_reason {finish!r})")
    return text


def read_reasoning(message: ChatMessage | None) -> str | None:
    """The reasoning that a server gives beside the answer, under one of two names; None where it gives none. vLLM gives an
    empty one, and no text, where the model ended at once."""
    if message is None:
        return None
    reasoning = message.reasoning if message.reasoning_content is None else message.reasoning_content
    if reasoning is not None and not isinstance(reasoning, str):
        raise Failure("garbage", f"the reasoning of the server's answer is {shown(reasoning, 40)}, not a text")
    return reasoning


def _read_detail(usage: Any, section: str, name: str) -> int | None:
    """A count inside of the usage; None where it is not given, not valid or 0."""
    details = usage.get(section) if isinstance(usage, dict) else None
    return token_count(details.get(name)) or None if isinstance(details, dict) else None


def read_tool_calls(choice: Choice, finish: str | None) -> tuple[ToolCall, ...]:
    """The calls of an answer, in order. Arguments that are not JSON stay as the model wrote them. Where the token limit
    ended the answer, a last call without any was cut before them."""
    called = (choice.message.tool_calls if choice.message is not None else None) or []
    calls = [ToolCall.parse(call.function.name or "", call.function.arguments, call.id or "") for call in called]
    if calls and finish == "length" and not calls[-1].text.strip():
        calls[-1] = replace(calls[-1], arguments=None)
    return tuple(calls)


def read_counts(usage: Any, names: tuple[str, str], warn: Callable[[str], None]) -> tuple[int | None, int | None]:
    """Token counts. Invalid ones are left out with a warning; they never make a response an error."""
    values = usage if isinstance(usage, dict) else {}
    counts = tuple(token_count(values.get(name)) for name in names)
    invalid = any(values.get(name) is not None and count is None for name, count in zip(names, counts, strict=True))
    if invalid or (usage is not None and not isinstance(usage, dict)):
        warn(INVALID_COUNTS)
    return counts[0], counts[1]


def read_tokens(logprobs: Logprobs | None) -> tuple[Token, ...] | None:
    """The tokens of a chat completion or a completion; None if it has none."""
    if logprobs is None:
        return None
    if logprobs.content is not None:
        return tuple(map(_chat_token, logprobs.content))
    if not logprobs.tokens:
        return None
    scores = logprobs.token_logprobs or []
    tops = logprobs.top_logprobs or [None] * len(logprobs.tokens)
    if not len(logprobs.tokens) == len(scores) == len(tops) or None in scores:
        raise Failure("garbage", "the log-probabilities of the server's answer cannot be read: not every token has one")
    entries = zip(logprobs.tokens, scores, tops, strict=True)
    return tuple(_token(text, score, (top or {}).items()) for text, score, top in entries if score is not None)


def _chat_token(entry: ChatToken) -> Token:
    top = [(other.token if other.id is None else other.id, other.logprob) for other in entry.top_logprobs or []]
    token = _token(entry.token, entry.logprob, top)
    return token if entry.id is None else Token(entry.id, token.text, token.logprob, token.top)


def _token(text: str | int, score: float, top: Iterable[tuple[str | int, float]]) -> Token:
    name = token_name(text)
    best = sorted(((token_name(other), log_probability(value)) for other, value in top), key=lambda pair: -pair[1])
    return Token(name if isinstance(name, int) else None, str(text), log_probability(score), tuple(best))


def token_name(token: str | int) -> int | str:
    """A token's id if the server gives it, else its text."""
    if isinstance(token, str) and token.startswith(TOKEN_ID) and token[len(TOKEN_ID) :].isdecimal():
        return int(token[len(TOKEN_ID) :])
    return token


@dataclass
class _Call:
    """A call of a tool, as far as it has come."""

    name: str = ""
    id: str = ""
    arguments: list[str] = field(default_factory=list)

    def followed_by(self, part: CalledTool) -> bool:
        """Whether a part of the same index is of the next call. Some servers repeat the name in every part."""
        if not self.name or not part.function.name:
            return False
        if self.id and part.id:
            return part.id != self.id
        if part.index is not None or not self.arguments or not self.arguments[-1].rstrip().endswith("}"):
            return False
        return ToolCall.parse("", "".join(self.arguments)).arguments is not None

    def add(self, part: CalledTool) -> None:
        self.name, self.id = part.function.name or self.name, part.id or self.id
        given = part.function.arguments
        if given is not None:
            self.arguments.append(given if isinstance(given, str) else json.dumps(given))


class StreamedAnswer:
    """Collects text, reasoning, tool calls, finish_reason and token counts. A response without finish_reason is not
    complete."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, list[_Call]] = {}
        self._finish: str | None = None
        self._usage: Any = None
        self._named: dict[str, Any] = {}

    def feed(self, event: Any) -> bool:
        """Whether the event has text, of the answer or of the reasoning before it."""
        chunk = shaped(event, Completion, "an event of the stream")
        self._usage = chunk.usage or self._usage
        for name in ("model", "system_fingerprint", "provider"):
            if value := getattr(chunk, name):
                self._named[name] = value
        if not chunk.choices:
            return False
        choice = first_choice(chunk.choices)
        self._finish = read_finish(choice) or self._finish
        message = choice.delta or choice.message or ChatMessage()
        text, reasoning = choice.text or message.content or "", read_reasoning(message) or ""
        self._texts.append(text)
        self._reasoning.append(reasoning)
        called = self._feed_calls(choice)
        return bool(text or reasoning or called)

    def _feed_calls(self, choice: Choice) -> bool:
        """A call comes in parts, by its index: the name and the id once, the arguments piece by piece. Some servers give no
        index, or the same one to all calls: there another one begins with its name."""
        parts = (choice.delta.tool_calls if choice.delta is not None else None) or []
        for position, part in enumerate(parts):
            calls = self._calls.setdefault(position if part.index is None else part.index, [_Call()])
            if calls[-1].followed_by(part):
                calls.append(_Call())
            calls[-1].add(part)
        return bool(parts)

    def whole(self) -> dict[str, Any]:
        if self._finish is None:
            raise Failure("cut", "the server ended the stream before the answer was complete: it gave no finish_reason")
        text = "".join(self._texts)
        message: dict[str, Any] = {"content": text, "reasoning_content": "".join(self._reasoning) or None}
        if not text and self._finish == "tool_calls":
            message["content"] = None  # calls that did not come are not an empty answer
        if self._calls:
            message["tool_calls"] = [
                {"id": call.id, "function": {"name": call.name, "arguments": "".join(call.arguments)}}
                for index in sorted(self._calls)
                for call in self._calls[index]
            ]
        choice = {"index": 0, "message": message, "finish_reason": self._finish}
        return {"choices": [choice], "usage": self._usage, **self._named}
