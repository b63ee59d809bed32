"""Inputs of a model and the tokens scored in them: requests with equal inputs share a row."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mill.api.batching import Unit
from mill.api.request import Request
from mill.api.response import Response
from mill.models.tokens.pairs import TokenPair

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class EmbeddedPrefix:
    """An input up to the end of its last image, video or audio clip.

    `keys` stand for its tokens as token ids do: equal keys are equal embeddings at equal positions. `positions` has a row
    for each axis on which the model counts them, one for most models; `shift` is the position of a later text token minus
    its index, since an image takes fewer positions than tokens in some models. `added` are what some models add to the
    hidden states after each of their first layers, in the shape of the embeddings.
    """

    keys: list[int]
    embeddings: torch.Tensor
    positions: torch.Tensor
    shift: int = 0
    added: tuple[torch.Tensor, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(states.nbytes for states in (self.embeddings, *self.added))

    @property
    def length(self) -> int:
        return len(self.keys)

    def keys_of(self, ids: list[int]) -> list[int]:
        """The keys of an input that begins with this prefix."""
        return [*self.keys, *ids[self.length :]]

    def positions_of(self, start: int, end: int) -> torch.Tensor:
        """The positions of tokens [start, end) of an input that begins with this prefix."""
        import torch

        after = torch.arange(max(start, self.length), max(end, self.length)) + self.shift
        return torch.cat([self.positions[:, start:end], after.expand(len(self.positions), -1)], dim=1)


@dataclass(frozen=True)
class Span:
    """Tokens to score, the first of them predicted at input position `start`."""

    start: int
    tokens: list[int]
    truncated: int = 0


@dataclass(frozen=True, eq=False)
class Row:
    """One input of the model and, for each request that shares it, the span of that request. With a `prefix`, its first
    ids are the keys of that."""

    ids: list[int]
    spans: list[Span]
    requests: list[Request]
    prefix: EmbeddedPrefix | None = None


def shared_rows(requests: Sequence[Request], pairs: Sequence[TokenPair]) -> list[Row]:
    """Rows of requests; those with equal inputs share one: the choices A, B, C, D of a question are one input."""
    rows: dict[tuple[int, ...], Row] = {}
    for request, pair in zip(requests, pairs, strict=True):
        key = pair.input_key
        row = rows.get(key)
        if row is None:
            row = rows[key] = Row(pair.ids[:-1], [], [])
        row.spans.append(Span(pair.n_context - 1, pair.continuation, pair.truncated))
        row.requests.append(request)
    return list(rows.values())


def rows_with(rows: Sequence[Row], requests: Sequence[Request]) -> list[Row] | None:
    """The rows with these of their requests alone; None where a row has none of them or a request has no row."""
    wanted = set(map(id, requests))
    found = [row if wanted.issuperset(map(id, row.requests)) else _row_with(row, wanted) for row in rows]
    complete = all(row.requests for row in found) and sum(len(row.requests) for row in found) == len(requests)
    return found if complete else None


def _row_with(row: Row, wanted: Set[int]) -> Row:
    both = [(span, request) for span, request in zip(row.spans, row.requests, strict=True) if id(request) in wanted]
    return replace(row, spans=[span for span, _ in both], requests=[request for _, request in both])


def row_units(requests: Sequence[Request], pairs: Sequence[TokenPair]) -> list[Unit]:
    """Shared rows as units, sorted by shared prefix; equal costs preserve the order."""
    return [Unit(row.requests, 1, row) for row in sorted(shared_rows(requests, pairs), key=lambda row: row.ids)]


def span_response(row: Row, span: Span, score: float, greedy: bool, seconds: float | None = None) -> Response:
    return Response(
        score=score,
        is_greedy=greedy,
        prompt_tokens=len(row.ids) + 1 - len(span.tokens),
        output_tokens=len(span.tokens),
        truncated_tokens=span.truncated,
        seconds=seconds,
    )
