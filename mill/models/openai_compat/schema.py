"""The responses of servers with the OpenAI API. Fields that are not named here are not read."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from mill.api.errors import ModelError
from mill.models.http.body import shaped
from mill.models.http.failures import Failure, shown
from mill.support.validate import convert

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
    text_offset: list[int] | None = None


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
