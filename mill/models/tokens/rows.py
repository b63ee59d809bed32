"""The token ids of contexts and continuations, and the rows that a model scores: requests with equal inputs share a row."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from mill.api.batching import Unit
from mill.api.request import Request
from mill.api.response import Response

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


@dataclass(frozen=True)
class TokenPair:
    """Token ids of context and continuation, the length of the context, and how many tokens were truncated on the left.

    Pairs with an equal context may have its first tokens as the same object, `head`.
    """

    tail: list[int]
    n_context: int
    truncated: int
    head: list[int] = field(default_factory=list)

    @property
    def ids(self) -> list[int]:
        return self.head + self.tail

    @property
    def input_key(self) -> tuple[Any, ...]:
        """Equal for pairs whose inputs, all tokens but the last, have the same head and are equal."""
        return id(self.head) if self.head else 0, *self.tail[:-1]

    @property
    def fits(self) -> bool:
        """Whether at least one token of context is left; a continuation longer than the window leaves none."""
        return self.n_context > 0

    @property
    def continuation(self) -> list[int]:
        start = self.n_context - len(self.head)
        return self.tail[start:] if start >= 0 else self.ids[self.n_context :]


def make_pair(
    tail: list[int], n_context: int, *, window: int, prefix: int | None, head: list[int] | None = None
) -> TokenPair:
    """A pair from the ids of the whole text, `head` and `tail`. An empty context is `prefix` (BOS or EOS), never doubled.

    The model's input, all tokens but the last, is truncated on the left to `window` tokens.
    """
    head = head or []
    if n_context == 0:
        n_context, tail = 1, with_prefix(tail, prefix)
    length = len(head) + len(tail)
    # A continuation that is merged into the context's last token is still scored, with that token.
    n_context = max(1, min(n_context, length - 1))
    cut = max(0, length - 1 - window)
    return TokenPair((head + tail)[cut:], n_context - cut, cut) if cut else TokenPair(tail, n_context, 0, head)


def with_prefix(ids: list[int], prefix: int | None) -> list[int]:
    """The ids with the prefix token in front, unless they start with it already or there is none."""
    return ids if prefix is None or ids[:1] == [prefix] else [prefix, *ids]


def move_spaces(context: str, continuation: str) -> tuple[str, str]:
    """Move white space from the end of the context to the continuation, since tokens start with their space."""
    stripped = context.rstrip()
    return stripped, context[len(stripped) :] + continuation
