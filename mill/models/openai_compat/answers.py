"""Reading answers in OpenAI's shapes: text, counts, and the log-probabilities of generated tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mill.api.response import Response, Token
from mill.api.secrets import excerpt
from mill.models.http import Failure, Reply
from mill.models.stops import cut_at_stops

TOKEN_ID = "token_id:"  # how vLLM writes tokens when it is asked for ids


def read_answer(reply: Reply, stops: list[str]) -> Response:
    """A completion or a chat answer, cut at its stop strings."""
    body = reply.body
    try:
        choice = body["choices"][0]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
    except (KeyError, IndexError, TypeError) as error:
        raise Failure("garbage", f"the server's answer has no choices: {excerpt(str(body), 120)}") from error
    if not isinstance(text, str):
        raise Failure("garbage", f"the server's answer has no text (finish_reason {choice.get('finish_reason')!r})")
    usage = body.get("usage") or {}
    kept, stopped = cut_at_stops(text, stops)
    return Response(
        text=kept,
        finish_reason="stop" if stopped else choice.get("finish_reason"),
        tokens=read_tokens(choice.get("logprobs")),
        prompt_tokens=usage.get("prompt_tokens"),
        output_tokens=usage.get("completion_tokens"),
        seconds=reply.seconds,
        first_token_s=reply.first_token_s,
    )


def joined(reply: Reply) -> Reply:
    """A streamed answer as one that came whole: its texts in a row, the last finish_reason and the counts.

    An answer of one event that is whole is left as it is: not every server streams.
    """
    if len(reply.body) == 1 and reply.first_token_s is None:
        return replace(reply, body=reply.body[0])
    text, finish, usage = "", None, None
    for event in reply.body:
        usage = event.get("usage") or usage
        for choice in event.get("choices") or []:
            text += choice.get("text") or (choice.get("delta") or {}).get("content") or ""
            finish = choice.get("finish_reason") or finish
    return replace(reply, body={"choices": [{"text": text, "finish_reason": finish}], "usage": usage})


def read_tokens(logprobs: Any) -> tuple[Token, ...] | None:
    """The tokens of an answer in either shape: chat's list under `content`, or completions' parallel lists."""
    if not isinstance(logprobs, dict):
        return None
    try:
        if logprobs.get("content") is not None:
            return tuple(_chat_token(entry) for entry in logprobs["content"])
        if not logprobs.get("tokens"):
            return None
        tops = logprobs.get("top_logprobs") or [{}] * len(logprobs["tokens"])
        entries = zip(logprobs["tokens"], logprobs["token_logprobs"], tops, strict=True)
        return tuple(_token(text, score, (top or {}).items()) for text, score, top in entries)
    except (KeyError, TypeError, ValueError) as error:
        raise Failure("garbage", "the log-probabilities of the server's answer cannot be read") from error


def _chat_token(entry: dict[str, Any]) -> Token:
    """llama-server adds ids to OpenAI's shape."""
    top = [(named.get("id", named["token"]), named["logprob"]) for named in entry.get("top_logprobs") or []]
    found = _token(entry["token"], entry["logprob"], top)
    return found if entry.get("id") is None else Token(int(entry["id"]), found.text, found.logprob, found.top)


def _token(text: str, score: float, top: Any) -> Token:
    name = token_name(text)
    best = sorted(((token_name(other), float(value)) for other, value in top), key=lambda pair: -pair[1])
    return Token(name if isinstance(name, int) else None, text, float(score), tuple(best))


def token_name(token: Any) -> int | str:
    """A token's id where the server writes it, else its text."""
    if isinstance(token, str) and token.startswith(TOKEN_ID):
        return int(token[len(TOKEN_ID) :])
    return token if isinstance(token, int) else str(token)
