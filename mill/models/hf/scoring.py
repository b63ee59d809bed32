"""Log-probabilities of given tokens: rows of equal input computed once, logits only where something is scored."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mill.api.batching import Unit, is_out_of_memory
from mill.api.request import Request
from mill.api.response import Response

if TYPE_CHECKING:
    import torch

    from mill.models.pairs import Pair

LOGIT_BLOCK = 1 << 26  # floats of logits that are turned into log-probabilities at a time


@dataclass(frozen=True)
class Span:
    """Tokens to score, the first of them predicted at input position `start`."""

    start: int
    tokens: list[int]
    truncated: int = 0


@dataclass(frozen=True, eq=False)
class Row:
    """One input of the network and, for each request that shares it, the span that request asks for."""

    ids: list[int]
    spans: list[Span]
    requests: list[Request]


def shared_rows(requests: Sequence[Request], pairs: Sequence[Pair]) -> list[Row]:
    """Requests whose inputs are equal share a row: the choices A, B, C, D of a question are one input, not four."""
    rows: dict[tuple[int, ...], Row] = {}
    for request, pair in zip(requests, pairs, strict=True):
        ids = pair.ids[:-1]
        row = rows.setdefault(tuple(ids), Row(ids, [], []))
        row.spans.append(Span(pair.n_context - 1, pair.continuation, pair.truncated))
        row.requests.append(request)
    return list(rows.values())


def row_units(requests: Sequence[Request], pairs: Sequence[Pair]) -> list[Unit]:
    """Shared rows as units of work, those that begin alike one after another; of one cost: the order stays."""
    return [Unit(row.requests, 1, row) for row in sorted(shared_rows(requests, pairs), key=lambda row: row.ids)]


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


def span_response(row: Row, span: Span, score: float, greedy: bool, seconds: float | None = None) -> Response:
    return Response(
        score=score,
        is_greedy=greedy,
        prompt_tokens=len(row.ids) + 1 - len(span.tokens),
        output_tokens=len(span.tokens),
        truncated_tokens=span.truncated,
        seconds=seconds,
    )


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


def span_scores(logits: torch.Tensor, rows: Sequence[Row], first: int) -> list[list[tuple[float, bool]]]:
    """(sum of log-probabilities, whether every token was the likeliest) for each span; `logits` begin at place `first`."""
    import torch

    places: list[tuple[int, int]] = []  # row of the flattened logits, token
    width = logits.shape[1]
    for number, row in enumerate(rows):
        for span in row.spans:
            places += [(number * width + span.start - first + i, token) for i, token in enumerate(span.tokens)]
    where, tokens = (torch.tensor(column) for column in zip(*places, strict=True))
    return _sum_spans(rows, *token_scores(logits.flatten(0, 1), where, tokens))


def token_scores(logits: torch.Tensor, where: torch.Tensor, tokens: torch.Tensor) -> tuple[list[float], list[bool]]:
    """The log-probability of each token at its row of logits, and whether it was the likeliest, a block at a time."""
    import torch

    where, tokens = where.to(logits.device), tokens.to(logits.device)
    scores, greedy = [], []
    block = max(1, LOGIT_BLOCK // logits.shape[-1])
    for start in range(0, len(where), block):
        # The choices of one token stand on one row, whose log-softmax is taken once.
        rows, place = where[start : start + block].unique(return_inverse=True)
        chosen = logits[rows].float()
        token = tokens[start : start + block]
        # The operation of transformers' own loss, so that figures agree with it to the last digit.
        scores.append(chosen.log_softmax(dim=1)[place, token].double().cpu())
        greedy.append((chosen[place, token] >= chosen.amax(dim=1)[place]).cpu())
    if not scores:
        return [], []
    return torch.cat(scores).tolist(), torch.cat(greedy).tolist()


def _sum_spans(rows: Sequence[Row], scores: list[float], greedy: list[bool]) -> list[list[tuple[float, bool]]]:
    found, place = [], 0
    for row in rows:
        of_row = []
        for span in row.spans:
            end = place + len(span.tokens)
            of_row.append((float(sum(scores[place:end])), all(greedy[place:end])))
            place = end
        found.append(of_row)
    return found
