"""Log-likelihoods of one loaded model: packed, prefixes once, where its layers allow it; other rows in padded batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

from mill.api.batching import BatchLimits, Completed, Unit, as_response, run_batches
from mill.api.model import StreamContext
from mill.api.request import ALL, LOGLIKELIHOOD, ROLLING, Request
from mill.api.response import Response
from mill.models.device import scoring_tokens
from mill.models.hf.media_prefixes import Embedded, MediaPrefixes, score_media
from mill.models.hf.startup import Ahead
from mill.models.media.inputs import MediaRow, decoded_ahead, media_groups
from mill.models.prefix import paths
from mill.models.prefix.fast_path import FastPath, Waiting, scores_of
from mill.models.prefix.scoring import forward_rows, score_documents, score_rows
from mill.models.tokens.reasoning import as_tokens, token_logprobs
from mill.models.tokens.rows import Row, Span, shared_rows, span_response
from mill.models.tokens.tokenizer import Tokens
from mill.support.clocks import FORWARD, phase

if TYPE_CHECKING:
    import torch

Score = Callable[[Any, list[Any]], list[list[Response]]]


class Scorer:
    """`media` is made when the first request with media comes."""

    def __init__(self, fast: FastPath, tokens: Tokens, ahead: Ahead, media: Callable[[], MediaPrefixes]) -> None:
        self.fast, self.model, self._tokens, self._ahead, self._media = fast, fast.model, tokens, ahead, media

    def texts(self, requests: Sequence[Request], context: StreamContext, batch_size: int | None) -> Iterator[Completed]:
        """In parts: while one is computed, a thread tokenizes the next."""
        detailed = [request for request in requests if request.options.get("logprobs")]
        if detailed:
            yield from self._detailed(detailed, context, batch_size)
        plain = [request for request in requests if not request.options.get("logprobs")]
        count, expected = context.tokens, 0
        parts = self._ahead.parts(self._tokens, plain, shared=not self.fast.disabled)
        for part, following in zip_longest(parts, parts[1:], fillvalue=()):
            rows, work, errors = self._ahead.rows(self._tokens, part)
            yield from errors
            if following:
                self._ahead.score(self._tokens, following, shared=True)
            count.planned -= expected
            expected = work.trie.tokens * len(following) // len(part) if work is not None else 0
            count.planned += expected
            waiting, sampled = Waiting(self.fast, paths.SCORING, rows, batch_size), list[tuple[Row, list[Response]]]()
            with self.fast.falling_back():
                for row, outcome in self.fast.packed(rows, count, batch_size, work):
                    if isinstance(outcome, list):
                        if self.fast.is_due(paths.SCORING, len(row.ids)):
                            self._verify(row, outcome)
                        elif self.fast.samples(paths.SCORING, row.requests[0].key):
                            sampled.append((row, outcome))  # which would wait for the passes that are running
                    yield from waiting.answered(row, outcome)
                for row, responses in sampled:
                    self._verify(row, responses)
            yield from self._padded(waiting.left(), score_rows, context, batch_size, logits=0.2)

    def media(self, requests: Sequence[Request], context: StreamContext, batch_size: int | None) -> Iterator[Completed]:
        """An image once for all of its requests, where the model allows it; the others in padded batches of one shape."""
        media, count = self._media(), context.tokens
        rows = media.inputs.rows(requests)
        waiting = Waiting(self.fast, paths.SCORING, rows, batch_size)
        for group in media.groups(rows):
            embedded: dict[Row, Embedded] = {}
            for one in group:
                if isinstance(one, Embedded):
                    embedded[one.scored()] = one
                else:
                    yield from waiting.answered(*one)
            with self.fast.falling_back():
                for row, outcome in self.fast.packed(list(embedded), count, batch_size):
                    if isinstance(outcome, list):
                        media.check_scores(embedded[row], row, outcome)
                    yield from waiting.answered(embedded[row].row, outcome)

        def score(rows: list[MediaRow], decoded: list[Any]) -> list[list[Response]]:
            with phase(FORWARD):
                scored = score_media(self.model, media.inputs, rows, decoded)
            count.computed += sum((one[0].prompt_tokens or 0) + row.tail for row, one in zip(rows, scored, strict=True))
            return scored

        limits = self.fast.limits(batch_size, scoring_tokens(self.model, logits_per_token=1.0))
        for units in media_groups(waiting.left()):
            with decoded_ahead(media.inputs, units, LOGLIKELIHOOD, score) as hook:
                yield from run_batches(units, hook, limits=limits, healthy=context.canary is not None)

    def documents(self, requests: Sequence[Request], context: StreamContext, batch_size: int | None) -> Iterator[Completed]:
        documents = zip(requests, map(self._tokens.windows, requests), strict=True)
        units = [Unit([request], sum(len(row.ids) for row in rows), rows) for request, rows in documents]
        budget = scoring_tokens(self.model, logits_per_token=1.0)
        size = self.fast.limits(batch_size, budget).requests
        self.fast.log.add(paths.ROLLING, self._plain(batch_size), len(requests))

        def score(model: Any, documents: list[list[Row]]) -> list[list[Response]]:
            return [[answer] for answer in score_documents(model, documents, budget, size)]

        return self._batches(ROLLING, units, score, context, BatchLimits(size, budget))

    def _detailed(self, requests: Sequence[Request], context: StreamContext, batch_size: int | None) -> Iterator[Completed]:
        """With tokens and distributions, padded: they are requested to find differences, not to save time."""
        self.fast.log.add(paths.SCORING, self._plain(batch_size), len(requests), "logprobs requested")
        fitting, pairs, errors = self._tokens.scorable(requests)
        rows = shared_rows(fitting, pairs)

        def score(model: Any, rows: Sequence[Row]) -> list[list[Response]]:
            return score_with_logprobs(model, self._tokens.tokenizer, rows)

        return chain(errors, self._padded(rows, score, context, batch_size, logits=2.0))

    def _plain(self, batch_size: int | None) -> str:
        return paths.ALONE if self.fast.alone(batch_size) else paths.PADDED

    def _padded(
        self, rows: Sequence[Row], score: Score, context: StreamContext, batch_size: int | None, *, logits: float
    ) -> Iterator[Completed]:
        """`logits` is the share of positions with logits."""
        units = [Unit(row.requests, len(row.ids), row) for row in rows]
        limits = self.fast.limits(batch_size, scoring_tokens(self.model, logits_per_token=logits))
        return self._batches(LOGLIKELIHOOD, units, score, context, limits)

    def _batches(
        self, kind: str, units: Sequence[Unit], score: Score, context: StreamContext, limits: BatchLimits
    ) -> Iterator[Completed]:
        """A response without what its kind needs, or with NaN, becomes its request's error."""
        context.tokens.planned += sum(unit.cost for unit in units)

        def hook(batch: list[Unit]) -> list[list[Response]]:
            with phase(FORWARD):
                scored = score(self.model, [unit.data for unit in batch])
            context.tokens.computed += sum(unit.cost for unit in batch)
            return [[as_response(response, kind) for response in responses] for responses in scored]

        return run_batches(units, hook, limits=limits, healthy=context.canary is not None)

    def _verify(self, row: Row, responses: list[Response]) -> None:
        def plain() -> list[float]:
            return scores_of(score_rows(self.model, [row])[0])

        tokens = max(len(span.tokens) for span in row.spans)
        self.fast.verify(paths.SCORING, len(row.ids), scores_of(responses), plain, tokens=tokens)


def score_with_logprobs(model: Any, tokenizer: Any, rows: Sequence[Row]) -> list[list[Response]]:
    """As `score_rows`, with tokens; requests of `logprobs: "all"` get the log-probabilities of the whole vocabulary."""
    logits, first = forward_rows(model, rows)
    responses = []
    for row_logits, row in zip(logits, rows, strict=True):
        spans = zip(row.spans, row.requests, strict=True)
        responses.append(
            [_detailed_response(tokenizer, row, span, request, row_logits[span.start - first :]) for span, request in spans]
        )
    return responses


def _detailed_response(tokenizer: Any, row: Row, span: Span, request: Request, logits: torch.Tensor) -> Response:
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
