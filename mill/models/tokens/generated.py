"""From generated token ids to a response: the text up to its stop, and the log-probabilities of its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mill.api.response import Response, Token
from mill.models.tokens.reasoning import decoded_text, marks_of, read_text, with_reasoning_tokens
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
    logprobs: list[TokenLogprobs] | None,
) -> Response:
    ends = [index for index, token in enumerate(ids) if token in end_ids]
    answer = ids[: ends[0]] if ends else ids
    request = prompt.request
    response = read_text(
        request,
        decoded_text(tokenizer, answer, marks_of(request)),
        stops,
        opened=prompt.opened,
        # A stop string may be part of a special token's name, which the text does not have.
        finish="stop" if ends or len(ids) < prompt.max_new_tokens else "length",
        tokens=None if logprobs is None else as_tokens(tokenizer, answer, logprobs),
        prompt_tokens=prompt.length,
        output_tokens=len(answer) + bool(ends),
        truncated_tokens=prompt.truncated,
    )
    return with_reasoning_tokens(tokenizer, request, response, answer)


def as_tokens(tokenizer: Any, ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> tuple[Token, ...]:
    """Ids with their log-probabilities; there may be one more of those, for the token that ended the answer."""
    texts = tokenizer.batch_decode([[token] for token in ids])
    tokens = zip(ids, texts, logprobs, strict=False)
    return tuple(Token(token, text, logprob, top) for token, text, (logprob, top) in tokens)


def token_logprobs(logprobs: torch.Tensor, token: int, count: int) -> TokenLogprobs:
    """The log-probability of the chosen token and the top_logprobs, from a distribution."""
    best = logprobs.topk(min(count, len(logprobs)))
    return float(logprobs[token]), tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
