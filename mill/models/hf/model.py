"""The `hf` backend: any causal language model that transformers can load."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

from mill.api.batching import BatchLimits, Completed, Unit, as_response
from mill.api.errors import FastPathFailed
from mill.api.model import options_text
from mill.api.request import ALL, GENERATE, LOGLIKELIHOOD, ROLLING, Request
from mill.api.response import Response
from mill.models import memory
from mill.models.hf import decoding
from mill.models.hf.ahead import PromptsAhead, TokenizedAhead, first_part, is_plain
from mill.models.hf.checkpoint import DECODED, TransformersCheckpoint
from mill.models.hf.multimodal import MediaRow
from mill.models.hf.shared_media import SharedMedia
from mill.models.prefix import padded_scoring, paths
from mill.models.prefix.engine import PrefixEngine
from mill.models.prefix.packed_scoring import NotShared, Work
from mill.models.prefix.padded_scoring import forward_rows
from mill.models.tokens.generated import as_tokens, token_logprobs
from mill.models.tokens.pairs import TokenPair
from mill.models.tokens.rows import Row, Span, shared_rows, span_response
from mill.models.tokens.tokenizer import Prompt
from mill.support.clocks import DECODING, FORWARD, LOADING, TOKENIZING, phase
from mill.support.terminal import TokenCount

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


AnyRow = TypeVar("AnyRow", Row, MediaRow, Prompt)
PATHS = {
    paths.SCORING: (paths.PACKED, paths.PADDED, LOGLIKELIHOOD),
    paths.DECODING: (paths.CONTINUOUS, paths.PLAIN, GENERATE),
}
"""The fast path of each stage, the plain one, and the kind of answers."""


class TransformersModel(TransformersCheckpoint):
    """Scores and generates: packed and sharing prefixes where the model's layers allow it, else in padded batches."""

    _ahead: TokenizedAhead | None = None
    _prompts_ahead: PromptsAhead | None = None
    _padding = ""
    """Why rows are not padded."""

    def prepare_requests(self, kind: str, requests: Sequence[Request]) -> None:
        if self._model is not None:
            return
        with phase(LOADING):
            self._import_packages(decodes=kind in DECODED)
        if kind == GENERATE and self._can_load_in_thread and not any(request.media for request in requests):
            self._prompts_ahead = PromptsAhead(self._start_tokens(), requests)
        started = self._ahead is not None and any(request in self._ahead for request in requests[:1])
        if all(map(is_plain, requests)) and not started:
            self._tokenize_ahead(requests)

    def _tokenize_ahead(self, requests: Sequence[Request]) -> None:
        count = first_part(requests) if self._can_load_in_thread else len(requests)
        self._ahead = TokenizedAhead(self.tokens, requests[:count], shared=not self._sharing_disabled)

    def _load(self) -> None:
        _ = self.model, self.prefix_engine

    def clean(self) -> None:
        with contextlib.suppress(Exception):  # it loaded for nothing, as all responses were recorded
            self._wait_for_loading()
        for name in ("shared_media", "prefix_engine"):
            self.__dict__.pop(name, None)
        super().clean()

    def _stream(self, kind: str, requests: Sequence[Request]) -> Iterator[Completed]:
        try:
            for completed in self._computed(kind, requests):
                self._refuse_overwritten()  # before it is recorded
                yield completed
        except FastPathFailed as failure:
            self._refuse_overwritten()  # which would be why
            self._paths.fail(str(failure))
            raise

    def warnings(self) -> list[str]:
        return [*super().warnings(), *self._paths.failures, *([self._padding] if self._padding else [])]

    def _computed(self, kind: str, requests: Sequence[Request]) -> Iterator[Completed]:
        if kind == LOGLIKELIHOOD:
            return self._split_media(requests, self._score_texts, self._score_media)
        if kind == ROLLING:
            return self._score_documents(requests)
        if kind in DECODED:
            if self._compiling is not None:
                self._compiling.all.result()  # while steps are captured as graphs, no other thread may use the device
            return self._split_media(requests, self._generate_texts, self._generate_media)
        raise self._cannot(kind)

    def _count(self) -> TokenCount:
        """That of the stream in progress, which may have texts and media."""
        if self.token_count is None:
            self.token_count = TokenCount()
        return self.token_count

    def _score_texts(self, requests: Sequence[Request]) -> Iterator[Completed]:
        with_logprobs = [request for request in requests if request.options.get("logprobs")]
        if with_logprobs:
            yield from self._score_with_logprobs(with_logprobs)
        plain = [request for request in requests if not request.options.get("logprobs")]
        if plain:
            yield from self._score_plain(plain)

    def _score_with_logprobs(self, requests: Sequence[Request]) -> Iterator[Completed]:
        """Scores with tokens and distributions, padded: they are requested to find differences, not to save time."""

        def hook(batch: list[Unit]) -> list[list[Response]]:
            with phase(FORWARD):
                scored = score_with_logprobs(self.model, self.tokens.tokenizer, [unit.data for unit in batch])
            count.computed += sum(unit.cost for unit in batch)
            return scored

        def units(requests: Sequence[Request], pairs: Sequence[TokenPair]) -> list[Unit]:
            found = [Unit(row.requests, len(row.ids), row) for row in shared_rows(requests, pairs)]
            count.planned += sum(unit.cost for unit in found)
            return found

        count = self._count()
        self._paths.add(paths.SCORING, paths.ALONE if self._alone else paths.PADDED, len(requests), "logprobs requested")
        limits = self._token_limits(memory.scoring_tokens(self.model, logits_per_token=2.0))
        return self._score_pairs(requests, units, hook, limits)

    def _score_plain(self, requests: Sequence[Request]) -> Iterator[Completed]:
        """In parts: while one is computed, a thread tokenizes the next."""
        count = self._count()
        parts, expected = self._parts(requests), 0
        for part, following in zip_longest(parts, parts[1:], fillvalue=()):
            rows, work, too_long = self._tokenized(part)
            yield from too_long
            if following:
                self._ahead = TokenizedAhead(self.tokens, following, shared=True)
            count.planned -= expected
            expected = work.trie.tokens * len(following) // len(part) if work is not None else 0
            count.planned += expected
            yield from self._score_rows(rows, work, count)

    def _parts(self, requests: Sequence[Request]) -> list[Sequence[Request]]:
        """Those that are tokenized ahead, and the others; all at once where rows are not shared."""
        if self.prefix_engine.disabled:
            return [requests]
        if self._ahead is None and self._can_load_in_thread and first_part(requests) < len(requests):
            self._tokenize_ahead(requests)
        ahead = self._ahead if self._ahead is not None else ()
        first = [request for request in requests if request in ahead]
        others = [request for request in requests if request not in ahead]
        return [part for part in (first, others) if part]

    def _tokenized(self, requests: Sequence[Request]) -> tuple[list[Row], Work | None, list[Completed]]:
        """The requests that can be scored, as rows, with their trie if a thread made it; and the errors of the others."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or not all(request in ahead for request in requests):
            fitting, pairs, too_long = self._fitting_pairs(requests, self.tokens.pairs(requests))
            return shared_rows(fitting, pairs), None, too_long
        with phase(TOKENIZING):
            fitting, pairs, too_long = self._fitting_pairs(requests, ahead.pairs_of(requests))
            work = ahead.work_of(fitting)
            return list(work.rows) if work is not None else shared_rows(fitting, pairs), work, too_long

    def _score_rows(self, rows: Sequence[Row], work: Work | None, count: TokenCount) -> Iterator[Completed]:
        """Packed, sharing prefixes, where the model's layers allow it; the other rows in padded batches."""
        left: list[Row] = []
        scored = self.prefix_engine.score(rows, batch_size=self.batch_size, count=count, work=work)
        yield from self._shared(paths.SCORING, scored, left)

        def hook(batch: list[Unit]) -> list[list[Response]]:
            with phase(FORWARD):
                scored = padded_scoring.score_rows(self.model, [unit.data for unit in batch])
            count.computed += sum(unit.cost for unit in batch)
            return scored

        units = [Unit(row.requests, len(row.ids), row) for row in left]
        count.planned += sum(unit.cost for unit in units)
        limits = self._token_limits(memory.scoring_tokens(self.model, logits_per_token=0.2))
        yield from self._stream_checked(LOGLIKELIHOOD, units, hook, limits)

    def _shared(
        self, stage: str, outcomes: Iterable[tuple[AnyRow, list[Response] | NotShared]], left: list[AnyRow]
    ) -> Iterator[Completed]:
        """The requests of rows that a fast path answered. The other rows are added to `left`, their reasons logged."""
        fast, batches, kind = PATHS[stage]
        plain = paths.ALONE if self._alone else batches
        for row, outcome in outcomes:
            if isinstance(outcome, NotShared):
                left.append(row)
                self._paths.add(stage, plain, len(row.requests), outcome.reason)
            else:
                self._paths.add(stage, fast, len(row.requests))
                yield from zip(row.requests, [as_response(response, kind) for response in outcome], strict=True)

    @cached_property
    def prefix_engine(self) -> PrefixEngine:
        model = self.model  # first: loading sets the tokens that end an answer
        engine = PrefixEngine(
            model,
            self.tokens.tokenizer,
            self._eos_ids,
            free_memory=self._free_memory,
            disabled=self._sharing_disabled,
            pads=self.batch_size != 1 and not self.lock_step,
            log=self._paths,
        )
        self._padding = engine.padding_obstacle
        return engine

    @cached_property
    def shared_media(self) -> SharedMedia:
        return SharedMedia(self.media, self.prefix_engine)

    @property
    def prefix_sharing(self) -> bool:
        """Whether shared prefixes are computed once."""
        return not self.prefix_engine.disabled

    @property
    def _sharing_disabled(self) -> str:
        """Why an argument forbids prefix sharing: with `fsdp` all ranks must compute the same passes."""
        return "exact=true" if self.exact else "fsdp=true" if self.lock_step else ""

    def planned_paths(self) -> dict[str, str]:
        return paths.planned(self._sharing_disabled, alone=self.batch_size == 1)

    def execution_paths(self) -> dict[str, str]:
        return self._paths.summary()

    def _score_media(self, requests: Sequence[Request]) -> Iterator[Completed]:
        """Packed, an image once for all of its requests, where the model allows it; the others in padded batches."""

        def score(rows: list[MediaRow], decoded: list[Any]) -> list[list[Response]]:
            with phase(FORWARD):
                scored = self.media.score(self.model, rows, decoded)
            count.computed += sum((one[0].prompt_tokens or 0) + row.tail for row, one in zip(rows, scored, strict=True))
            return scored

        left: list[MediaRow] = []
        count = self._count()
        shared = self.shared_media.score(self.media.rows(requests), batch_size=self.batch_size, count=count)
        yield from self._shared(paths.SCORING, shared, left)
        limits = self._token_limits(memory.scoring_tokens(self.model, logits_per_token=1.0))
        yield from self._stream_media(LOGLIKELIHOOD, left, score, limits)

    def _score_documents(self, requests: Sequence[Request]) -> Iterator[Completed]:
        documents = zip(requests, map(self.tokens.windows, requests), strict=True)
        units = [Unit([request], sum(len(row.ids) for row in rows), rows) for request, rows in documents]
        budget = memory.scoring_tokens(self.model, logits_per_token=1.0)
        limits = BatchLimits(self._token_limits(budget).requests, budget)
        self._paths.add(paths.ROLLING, paths.ALONE if self._alone else paths.PADDED, len(requests))
        count = self._count()
        count.planned += sum(unit.cost for unit in units)

        def hook(batch: list[Unit]) -> list[list[Response]]:
            with phase(FORWARD):
                answers = padded_scoring.score_documents(self.model, [unit.data for unit in batch], budget, limits.requests)
            count.computed += sum(unit.cost for unit in batch)
            return [[answer] for answer in answers]

        return self._stream_checked(ROLLING, units, hook, limits)

    def _generate_texts(self, requests: Sequence[Request]) -> Iterator[Completed]:
        """By continuous batching where prefixes are shared; the others in plain batches of equal decoding options."""
        groups: dict[str, list[Unit]] = {}
        ahead, self._prompts_ahead = self._prompts_ahead, None
        prompts = ahead.prompts_of(requests) if ahead is not None else None
        if prompts is None:
            prompts = self.tokens.prompts(requests)
        count = self._count()
        left: list[Prompt] = []
        decoded = self.prefix_engine.decode(prompts, batch_size=self.batch_size, count=count)
        yield from self._shared(paths.DECODING, decoded, left)
        for prompt in left:
            unit = Unit([prompt.request], len(prompt.ids) + prompt.max_new_tokens, prompt)
            groups.setdefault(options_text(prompt.request), []).append(unit)
        limits = self._token_limits(memory.generation_tokens(self.model))

        def hook(batch: list[Unit]) -> list[list[Response]]:
            with phase(DECODING):
                answers = decoding.generate(self.model, self.tokens, [unit.data for unit in batch], self._eos_ids)
            count.prompts += sum(len(unit.data.ids) - 1 for unit in batch)
            return [[answer] for answer in answers]

        for group in groups.values():
            yield from self._stream_units(group, hook, limits)

    def _generate_media(self, requests: Sequence[Request]) -> Iterator[Completed]:
        def answer(rows: list[MediaRow], decoded: list[Any]) -> list[list[Response]]:
            with phase(DECODING):
                answers = self.media.generate(self.model, rows, decoded, self._eos_ids)
            count.prompts += sum((response.prompt_tokens or 1) - 1 for response in answers)
            return [[response] for response in answers]

        left: list[MediaRow] = []
        count = self._count()
        rows = [MediaRow(request, self.media.rendered(request), requests=[request]) for request in requests]
        decoded = self.shared_media.decode(rows, batch_size=self.batch_size, count=count)
        yield from self._shared(paths.DECODING, decoded, left)
        yield from self._stream_media(GENERATE, left, answer, self._token_limits(memory.generation_tokens(self.model)))

    def _token_limits(self, budget: int) -> BatchLimits:
        """The requested batch size, else as many tokens as fit; rows that must not be padded are computed one by one."""
        size = 1 if self._alone else self.batch_size
        return BatchLimits(requests=size) if size else BatchLimits(tokens=budget)

    @property
    def _alone(self) -> bool:
        return self.batch_size == 1 or bool(self.prefix_engine.padding_obstacle)
