"""The `hf` backend: any causal language model that transformers can load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from mill.api.batching import Answered, BatchLimits, Unit, as_response, describe, is_out_of_memory
from mill.api.errors import MillError
from mill.api.model import options_text
from mill.api.request import GENERATE, LOGLIKELIHOOD, MULTI_ROUND, ROLLING, Request
from mill.api.response import Response
from mill.api.warnings import warn
from mill.models import memory
from mill.models.hf import decoding, logprobs
from mill.models.hf.checkpoint import TransformersCheckpoint
from mill.models.hf.multimodal import MediaRow
from mill.models.prefix import packed_scoring, padded_scoring
from mill.models.prefix.continuous import ContinuousDecoder
from mill.models.tokens.pairs import Pair
from mill.models.tokens.rows import Row, shared_rows
from mill.models.tokens.tokenizer import Prompt

MAX_SEQUENCES = 512  # decoded at once


class TransformersModel(TransformersCheckpoint):
    """Scores and generates: packed and sharing prefixes where the model's layers allow it, else in padded batches."""

    def load(self) -> None:
        _ = self.model, self.prefix_sharing  # so that rates include neither loading nor probing

    def clean(self) -> None:
        self.__dict__.pop("prefix_sharing", None)
        super().clean()

    def _stream(self, kind: str, requests: Sequence[Request]) -> Iterator[Answered]:
        if kind == LOGLIKELIHOOD:
            return self._split_media(requests, self._score_texts, self._score_media)
        if kind == ROLLING:
            return self._score_documents(requests)
        if kind in (GENERATE, MULTI_ROUND):
            return self._split_media(requests, self._generate_texts, self._generate_media)
        raise self._cannot(kind)

    def _score_texts(self, requests: Sequence[Request]) -> Iterator[Answered]:
        with_logprobs = [request for request in requests if request.options.get("logprobs")]
        if with_logprobs:
            yield from self._score_with_logprobs(with_logprobs)
        plain = [request for request in requests if not request.options.get("logprobs")]
        if plain:
            yield from self._score_plain(plain)

    def _score_with_logprobs(self, requests: Sequence[Request]) -> Iterator[Answered]:
        """Scores with tokens and distributions, padded: they are requested to find differences, not to save time."""

        def hook(batch: list[Unit]) -> list[list[Response]]:
            return logprobs.score_with_logprobs(self.model, self.tokens.tokenizer, [unit.data for unit in batch])

        def units(requests: Sequence[Request], pairs: Sequence[Pair]) -> list[Unit]:
            return [Unit(row.requests, len(row.ids), row) for row in shared_rows(requests, pairs)]

        limits = self._token_limits(memory.scoring_tokens(self.model, logits_per_token=2.0))
        return self._score_pairs(requests, units, hook, limits)

    def _score_plain(self, requests: Sequence[Request]) -> Iterator[Answered]:
        """Packed, sharing prefixes, where the model's layers allow it; the other rows in padded batches."""
        fitting, pairs, too_long = self._fitting_pairs(requests)
        yield from too_long
        rows = shared_rows(fitting, pairs)
        scored: set[Row] = set()
        if self.prefix_sharing:
            for row, responses in self._score_packed(rows):
                scored.add(row)
                yield from zip(row.requests, responses, strict=True)

        def hook(batch: list[Unit]) -> list[list[Response]]:
            return padded_scoring.score_rows(self.model, [unit.data for unit in batch])

        units = [Unit(row.requests, len(row.ids), row) for row in rows if row not in scored]
        limits = self._token_limits(memory.scoring_tokens(self.model, logits_per_token=0.2))
        yield from self._stream_checked(LOGLIKELIHOOD, units, hook, limits)

    @cached_property
    def prefix_sharing(self) -> bool:
        """Whether shared prefixes are computed once: not with `exact`, nor by models whose layers do not allow it, nor where
        weights are sharded over ranks, which must all compute the same batches."""
        return not self.exact and not self.lock_step and packed_scoring.can_share(self.model)

    def _score_packed(self, rows: list[Row]) -> Iterator[tuple[Row, list[Response]]]:
        """Rows with their responses; rows that do not fit are left out."""
        tokens = memory.scoring_tokens(self.model, logits_per_token=0.0)
        if self.batch_size:  # as many tokens as that many of the longest rows
            tokens = min(tokens, self.batch_size * max((len(row.ids) for row in rows), default=1))
        scorer = packed_scoring.PrefixScorer(
            self.model, packed_scoring.Budget(tokens, memory.logit_rows(self.model)), self._free_memory
        )
        try:
            for row, responses in scorer.run(rows):
                yield row, [as_response(response, LOGLIKELIHOOD) for response in responses]
        except MillError:
            raise
        except Exception as error:  # padded batches isolate the request that fails
            warn(f"prefix sharing is off from here on: {describe(error)}")
            self.prefix_sharing = False

    def _score_media(self, requests: Sequence[Request]) -> Iterator[Answered]:
        def score(rows: list[MediaRow], decoded: list[Any]) -> list[list[Response]]:
            return self.media.score(self.model, rows, decoded)

        limits = self._token_limits(memory.scoring_tokens(self.model, logits_per_token=1.0))
        return self._stream_media(LOGLIKELIHOOD, self.media.rows(requests), score, limits)

    def _score_documents(self, requests: Sequence[Request]) -> Iterator[Answered]:
        documents = zip(requests, map(self.tokens.windows, requests), strict=True)
        units = [Unit([request], sum(len(row.ids) for row in rows), rows) for request, rows in documents]
        budget = memory.scoring_tokens(self.model, logits_per_token=1.0)

        def hook(batch: list[Unit]) -> list[list[Response]]:
            return [[answer] for answer in padded_scoring.score_documents(self.model, [unit.data for unit in batch], budget)]

        return self._stream_checked(ROLLING, units, hook, BatchLimits(self.batch_size, budget))

    def _generate_texts(self, requests: Sequence[Request]) -> Iterator[Answered]:
        """By continuous batching where prefixes are shared; the others in plain batches of equal decoding options."""
        prompts = self.tokens.prompts(requests)
        decoded: set[Prompt] = set()
        if self.prefix_sharing:
            for prompt, response in self._generate_continuously(prompts):
                decoded.add(prompt)
                yield prompt.request, as_response(response, GENERATE)
        groups: dict[str, list[Unit]] = {}
        for prompt in prompts:
            if prompt not in decoded:
                unit = Unit([prompt.request], len(prompt.ids) + prompt.max_new_tokens, prompt)
                groups.setdefault(options_text(prompt.request), []).append(unit)
        limits = self._token_limits(memory.generation_tokens(self.model))

        def hook(batch: list[Unit]) -> list[list[Response]]:
            answers = decoding.generate(self.model, self.tokens, [unit.data for unit in batch], self._eos_ids)
            return [[answer] for answer in answers]

        for group in groups.values():
            yield from self._stream_units(group, hook, limits)

    def _generate_continuously(self, prompts: Sequence[Prompt]) -> Iterator[tuple[Prompt, Response]]:
        """Prompts with their responses; those that do not fit memory or the attention window are left out."""
        window = packed_scoring.shortest_window(self.model.config.get_text_config())
        groups: dict[int, list[Prompt]] = {}
        for prompt in prompts:  # every slot is as long as the longest sequence of its group
            if window is None or len(prompt.ids) + prompt.max_new_tokens <= window:
                groups.setdefault(prompt.max_new_tokens.bit_length(), []).append(prompt)
        for group in groups.values():
            yield from self._decode_group(group)

    def _decode_group(self, prompts: list[Prompt]) -> Iterator[tuple[Prompt, Response]]:
        """Halve the number of concurrent sequences whenever memory runs out."""
        limit = self.batch_size or MAX_SEQUENCES
        done: set[Prompt] = set()
        while limit and self.prefix_sharing and (left := [prompt for prompt in prompts if prompt not in done]):
            decoder = ContinuousDecoder(
                self.model,
                self.tokens.tokenizer,
                self._eos_ids,
                tokens=memory.generation_tokens(self.model),
                at_once=memory.scoring_tokens(self.model, logits_per_token=0.0),
            )
            try:
                for prompt, response in decoder.run(left, limit):
                    done.add(prompt)
                    yield prompt, response
            except MillError:
                raise
            except Exception as error:
                if not is_out_of_memory(error):  # plain batches isolate the request that fails
                    warn(f"continuous batching is off from here on: {describe(error)}")
                    self.prefix_sharing = False
                    return
                limit = min(limit, len(left)) // 2
            else:
                del decoder  # it is in no reference cycle: its memory is free at once
                memory.empty_caches()
                return
            del decoder
            self._free_memory()

    def _generate_media(self, requests: Sequence[Request]) -> Iterator[Answered]:
        def answer(rows: list[MediaRow], decoded: list[Any]) -> list[list[Response]]:
            return [[response] for response in self.media.generate(self.model, rows, decoded, self._eos_ids)]

        rows = [MediaRow(request, self.media.render(request.context)) for request in requests]
        return self._stream_media(GENERATE, rows, answer, self._token_limits(memory.generation_tokens(self.model)))

    def _token_limits(self, budget: int) -> BatchLimits:
        """The requested batch size, else as many tokens as fit."""
        return BatchLimits(requests=self.batch_size) if self.batch_size else BatchLimits(tokens=budget)
