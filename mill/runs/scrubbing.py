"""Removes secrets from responses: a server may repeat its key in a text or in an error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mill.api.response import Response, Token
from mill.support.secrets import any_known, scrub


def without_secrets(response: Response) -> Response:
    """The response without known secrets; nearly always the same object."""
    if not any_known():
        return response
    changed: dict[str, Any] = {
        name: clean
        for name in ("text", "label", "error", "finish_reason")
        if (given := getattr(response, name)) and (clean := scrub(given)) != given
    }
    ranking = response.ranking and tuple((scrub(label), score) for label, score in response.ranking)
    tokens = _scrub_tokens(response.tokens, whole="text" not in changed)
    if not changed and ranking == response.ranking and tokens is response.tokens:
        return response
    return replace(response, **changed, ranking=ranking, tokens=tokens)


def _scrub_tokens(tokens: tuple[Token, ...] | None, *, whole: bool) -> tuple[Token, ...] | None:
    """None where a secret spans several tokens, each of which has a piece of it."""
    if not tokens:
        return tokens
    cleaned = tuple(map(_scrub_token, tokens))
    joined = "".join(token.text for token in cleaned)
    if not whole or scrub(joined) != joined:
        return None
    return tokens if all(new is old for new, old in zip(cleaned, tokens, strict=True)) else cleaned


def _scrub_token(token: Token) -> Token:
    text, names = scrub(token.text), [name if isinstance(name, int) else scrub(name) for name, _ in token.top]
    if text == token.text and all(new == old for new, (old, _) in zip(names, token.top, strict=True)):
        return token
    return replace(token, text=text, top=tuple((name, value) for name, (_, value) in zip(names, token.top, strict=True)))
