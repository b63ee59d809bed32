"""Responses of scored continuations, from the log-probabilities of their tokens."""

from __future__ import annotations

import math

from mill.api.response import Response, Token
from mill.models.openai_compat.scoring import LEFT_OUT


def scored_tokens(
    ids: list[int], logprobs: list[float | None], tops: list[dict[int | str, float]]
) -> tuple[Token, ...] | None:
    """The scored tokens with `top_logprobs`; None where the server names those by text, which several ids may share."""
    if any(isinstance(name, str) for top in tops for name in top):
        return None
    best = [sorted(top.items(), key=lambda pair: -pair[1]) for top in tops]
    return tuple(
        Token(token, "", score if score is not None else math.nan, tuple(top))
        for token, score, top in zip(ids, logprobs, best, strict=True)
    )


def scored_response(logprobs: list[float | None], greedy: list[bool], prompt_tokens: int, truncated: int) -> Response:
    if not logprobs or None in logprobs:
        return Response(error=LEFT_OUT)
    return Response(
        score=float(sum(score for score in logprobs if score is not None)),
        is_greedy=all(greedy),
        prompt_tokens=prompt_tokens,
        output_tokens=len(logprobs),
        truncated_tokens=truncated,
    )
