"""From logits to the log-probabilities of given tokens, a block of logits at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mill.models.tokens.rows import Row

if TYPE_CHECKING:
    import torch

LOGIT_BLOCK = 1 << 26  # floats of logits that are turned into log-probabilities at a time


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
