"""From generated token ids to a response: the text up to its stop, and the log-probabilities of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mill.api.response import Response, Token
from mill.models.tokens.stops import cut_at_stops
from mill.models.tokens.tokenizer import Prompt

if TYPE_CHECKING:
    import torch

TokenLogprobs = tuple[float, tuple[tuple[int, float], ...]]
"""The log-probability of a generated token, and the `top_logprobs` at its position."""


def decoded_response(
    tokenizer: Any,
    prompt: Prompt,
    ids: list[int],
    end_ids: list[int],
    stops: Sequence[str],
    places: list[TokenLogprobs] | None,
) -> Response:
    ends = [place for place, token in enumerate(ids) if token in end_ids]
    kept = ids[: ends[0]] if ends else ids
    text = tokenizer.decode(kept, skip_special_tokens=True)
    text, stopped = cut_at_stops(text, stops)
    return Response(
        text=text,
        finish_reason="stop" if ends or stopped else "length",
        tokens=None if places is None else as_tokens(tokenizer, kept, places),
        prompt_tokens=prompt.length,
        output_tokens=len(kept) + bool(ends),
        truncated_tokens=prompt.truncated,
    )


def as_tokens(tokenizer: Any, ids: Sequence[int], places: Sequence[TokenLogprobs]) -> tuple[Token, ...]:
    """Ids with what was told of their places; there may be more places than ids, such as that of the end."""
    texts = tokenizer.batch_decode([[token] for token in ids])
    told = zip(ids, texts, places, strict=False)
    return tuple(Token(token, text, logprob, top) for token, text, (logprob, top) in told)


def token_logprobs(logprobs: torch.Tensor, token: int, count: int) -> TokenLogprobs:
    """What a row of log-probabilities tells of the chosen token and its top_logprobs."""
    best = logprobs.topk(min(count, len(logprobs)))
    return float(logprobs[token]), tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
