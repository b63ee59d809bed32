"""Reading answers in OpenAI's shapes: text, counts, and the log-probabilities of generated tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from mill.api.response import Response, Token
from mill.models.http import Failure, Reply
from mill.models.http.values import log_probability, token_count
from mill.models.openai_compat.finish import CONTENT_FILTER, read_finish
from mill.models.openai_compat.schema import ChatToken, Choice, Logprobs, read_choice, read_logprobs
from mill.models.tokens.stops import cut_at_stops

TOKEN_ID = "token_id:"  # how vLLM writes tokens when it is asked for ids
ODD_COUNTS = "the server's counts of tokens are no counts, and are left out"


def read_answer(reply: Reply, stops: list[str], warn: Callable[[str], None]) -> Response:
    """A completion or a chat answer, cut at its stop strings."""
    completion, choice = read_choice(reply.body)
    finish = read_finish(choice)
    kept, stopped = cut_at_stops(_text_of(choice, finish), stops)
    prompt, output = read_counts(completion.usage, ("prompt_tokens", "completion_tokens"), warn)
    return Response(
        text=kept,
        finish_reason="stop" if stopped else finish,
        tokens=read_tokens(read_logprobs(choice)),
        prompt_tokens=prompt,
        output_tokens=output,
        seconds=reply.seconds,
        first_token_s=reply.first_token_s,
    )


def _text_of(choice: Choice, finish: str | None) -> str:
    """A text that a filter withheld is empty. One that is missing, or empty without a reason, is no answer."""
    text = choice.text if choice.text is not None or choice.message is None else choice.message.content
    if text is None and finish == CONTENT_FILTER:
        return ""
    if text is None or (not text and finish is None):
        raise Failure("garbage", f"the server's answer has no text (finish_reason {finish!r})")
    return text


def read_counts(usage: Any, names: tuple[str, str], warn: Callable[[str], None]) -> tuple[int | None, int | None]:
    """Counts of tokens, which never decide whether an answer counts: odd ones are left out, and that is reported."""
    given = usage if isinstance(usage, dict) else {}
    counts = tuple(token_count(given.get(name)) for name in names)
    odd = any(given.get(name) is not None and count is None for name, count in zip(names, counts, strict=True))
    if odd or (usage is not None and not isinstance(usage, dict)):
        warn(ODD_COUNTS)
    return counts[0], counts[1]


def read_tokens(logprobs: Logprobs | None) -> tuple[Token, ...] | None:
    """The tokens of an answer in either shape; None where there are none."""
    if logprobs is None:
        return None
    if logprobs.content is not None:
        return tuple(map(_chat_token, logprobs.content))
    if not logprobs.tokens:
        return None
    scores = logprobs.token_logprobs or []
    tops = logprobs.top_logprobs or [None] * len(logprobs.tokens)
    if not len(logprobs.tokens) == len(scores) == len(tops) or None in scores:
        raise Failure("garbage", "the log-probabilities of the server's answer cannot be read: its tokens have not one each")
    entries = zip(logprobs.tokens, scores, tops, strict=True)
    return tuple(_token(text, score, (top or {}).items()) for text, score, top in entries if score is not None)


def _chat_token(entry: ChatToken) -> Token:
    top = [(one.token if one.id is None else one.id, one.logprob) for one in entry.top_logprobs or []]
    found = _token(entry.token, entry.logprob, top)
    return found if entry.id is None else Token(entry.id, found.text, found.logprob, found.top)


def _token(text: str | int, score: float, top: Iterable[tuple[str | int, float]]) -> Token:
    name = token_name(text)
    best = sorted(((token_name(other), log_probability(value)) for other, value in top), key=lambda pair: -pair[1])
    return Token(name if isinstance(name, int) else None, str(text), log_probability(score), tuple(best))


def token_name(token: str | int) -> int | str:
    """A token's id where the server writes it, else its text."""
    if isinstance(token, str) and token.startswith(TOKEN_ID) and token[len(TOKEN_ID) :].isdecimal():
        return int(token[len(TOKEN_ID) :])
    return token
