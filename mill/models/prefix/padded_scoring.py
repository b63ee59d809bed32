"""Log-probabilities of given tokens: rows of equal input computed once, logits only where something is scored."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mill.api.batching import is_out_of_memory
from mill.api.response import Response
from mill.models.tokens.rows import Row, span_response
from mill.models.tokens.scores import span_scores

if TYPE_CHECKING:
    import torch


def score_rows(model: Any, rows: Sequence[Row]) -> list[list[Response]]:
    """Responses for every span of every row, in one forward pass."""
    logits, first = forward_rows(model, rows)
    return [
        [span_response(row, span, score, greedy) for span, (score, greedy) in zip(row.spans, scores, strict=True)]
        for row, scores in zip(rows, span_scores(logits, rows, first), strict=True)
    ]


def forward_rows(model: Any, rows: Sequence[Row]) -> tuple[torch.Tensor, int]:
    """The logits of every row from the first scored place on, and that place.

    Rows are padded on the right and need no mask: a causal model does not see what comes after a token.
    """
    import torch

    width = max(len(row.ids) for row in rows)
    ids = torch.zeros((len(rows), width), dtype=torch.long)
    for place, row in enumerate(rows):
        ids[place, : len(row.ids)] = torch.tensor(row.ids)
    first = min(span.start for row in rows for span in row.spans)
    keep = width - first
    with torch.inference_mode():
        arguments: dict[str, Any] = {"use_cache": False}
        if takes_logits_to_keep(model):
            arguments["logits_to_keep"] = keep
        return model(input_ids=ids.to(model.device), **arguments).logits[:, -keep:], first


def score_documents(model: Any, documents: Sequence[Sequence[Row]], budget: int) -> list[Response]:
    """The log-likelihood of documents that are cut into rows; `budget` is how many tokens go through at once.

    Rows of equal length stand together. When memory runs out, fewer go at once; a single row that does not fit raises.
    """
    rows = sorted(
        ((row, owner) for owner, of_one in enumerate(documents) for row in of_one), key=lambda pair: -len(pair[0].ids)
    )
    totals, tokens, place = [0.0] * len(documents), [0] * len(documents), 0
    while place < len(rows):
        part = rows[place : place + max(1, budget // len(rows[place][0].ids))]
        try:
            answers = score_rows(model, [row for row, _ in part])
        except Exception as error:
            if not is_out_of_memory(error) or len(part) == 1:
                raise
            budget = len(part) // 2 * len(rows[place][0].ids)
            continue
        place += len(part)
        for (_, owner), (answer,) in zip(part, answers, strict=True):
            totals[owner] += answer.score if answer.score is not None else float("nan")
            tokens[owner] += answer.output_tokens or 0
    return [Response(score=total, prompt_tokens=count, output_tokens=0) for total, count in zip(totals, tokens, strict=True)]


def takes_logits_to_keep(model: Any) -> bool:
    return "logits_to_keep" in inspect.signature(model.forward).parameters
