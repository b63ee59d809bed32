"""Scoring rows in padded batches: each row is computed by itself, with logits only where tokens are scored."""

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
    """The logits of every row from the first scored position on, and that position.

    Rows are padded on the right and need no mask: a causal model does not see later tokens.
    """
    import torch

    longest = max(len(row.ids) for row in rows)
    ids = torch.zeros((len(rows), longest), dtype=torch.long)
    for index, row in enumerate(rows):
        ids[index, : len(row.ids)] = torch.tensor(row.ids)
    first = min(span.start for row in rows for span in row.spans)
    keep = longest - first
    with torch.inference_mode():
        arguments: dict[str, Any] = {"use_cache": False}
        if takes_logits_to_keep(model):
            arguments["logits_to_keep"] = keep
        return model(input_ids=ids.to(model.device), **arguments).logits[:, -keep:], first


def score_documents(model: Any, documents: Sequence[Sequence[Row]], budget: int, most: int | None = None) -> list[Response]:
    """The log-likelihood of documents that are split into rows; a batch has at most `budget` tokens, and `most` rows.

    Rows of similar length share batches. When memory runs out, batches are halved; a single row that does not fit raises.
    """
    rows = sorted(
        ((row, owner) for owner, windows in enumerate(documents) for row in windows), key=lambda pair: -len(pair[0].ids)
    )
    totals, tokens, done = [0.0] * len(documents), [0] * len(documents), 0
    while done < len(rows):
        fitting = max(1, budget // len(rows[done][0].ids))
        batch = rows[done : done + min(fitting, most or fitting)]
        try:
            answers = score_rows(model, [row for row, _ in batch])
        except Exception as error:
            if not is_out_of_memory(error) or len(batch) == 1:
                raise
            budget = len(batch) // 2 * len(rows[done][0].ids)
            continue
        done += len(batch)
        for (_, owner), (answer,) in zip(batch, answers, strict=True):
            totals[owner] += answer.score if answer.score is not None else float("nan")
            tokens[owner] += answer.output_tokens or 0
    return [Response(score=total, prompt_tokens=count, output_tokens=0) for total, count in zip(totals, tokens, strict=True)]


def takes_logits_to_keep(model: Any) -> bool:
    return "logits_to_keep" in inspect.signature(model.forward).parameters
