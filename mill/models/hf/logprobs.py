"""Scoring with log-probabilities: each token of a continuation with its `top_logprobs` or the whole distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mill.api.request import ALL, Request
from mill.api.response import Response
from mill.models.prefix.padded_scoring import forward_rows
from mill.models.tokens.generated import as_tokens, token_logprobs
from mill.models.tokens.rows import Row, Span, span_response

if TYPE_CHECKING:
    import torch


def score_with_logprobs(model: Any, tokenizer: Any, rows: Sequence[Row]) -> list[list[Response]]:
    """As `score_rows`, with tokens; requests of `logprobs: "all"` get the log-probabilities of the whole vocabulary."""
    logits, first = forward_rows(model, rows)
    responses = []
    for row_logits, row in zip(logits, rows, strict=True):
        spans = zip(row.spans, row.requests, strict=True)
        responses.append(
            [_response(tokenizer, row, span, request, row_logits[span.start - first :]) for span, request in spans]
        )
    return responses


def _response(tokenizer: Any, row: Row, span: Span, request: Request, logits: torch.Tensor) -> Response:
    """`logits` start where the first token of the span is predicted."""
    # The operation of transformers' loss, as in padded scoring.
    logprobs = logits[: len(span.tokens)].float().log_softmax(dim=1).cpu()
    count = request.options["logprobs"]
    top_count = 1 if count == ALL else count
    chosen = [token_logprobs(of_one, token, top_count) for of_one, token in zip(logprobs, span.tokens, strict=True)]
    greedy = all(top[0][0] == token for token, (_, top) in zip(span.tokens, chosen, strict=True))
    answer = span_response(row, span, sum(score for score, _ in chosen), greedy)
    tokens = as_tokens(tokenizer, span.tokens, chosen)
    return replace(answer, tokens=tokens, distribution=logprobs.numpy() if count == ALL else None)
