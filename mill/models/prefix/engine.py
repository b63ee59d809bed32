"""Scoring and decoding with shared prefixes, and when they are switched off.

The plain path is the definition. What a fast path cannot do, or fails to do, is left to it with the reason; rows that are
computed on both show in every run that they agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

from mill.api.batching import is_out_of_memory
from mill.api.errors import FastPathFailed, MillError
from mill.api.response import Response
from mill.models import memory
from mill.models.device import make_current
from mill.models.prefix import paths
from mill.models.prefix.continuous import ContinuousDecoder
from mill.models.prefix.pack import Unsupported
from mill.models.prefix.packed_scoring import OUT_OF_MEMORY, Budget, NotShared, PrefixScorer, Work, shortest_window, too_long
from mill.models.prefix.padded_scoring import forward_rows, score_rows
from mill.models.prefix.paths import PathLog
from mill.models.prefix.proof import padding_obstacle, sharing_obstacle, token_noise
from mill.models.prefix.sampling import NOT_NUMBERS
from mill.models.prefix.sequences import ActiveSequence
from mill.models.tokens.rows import Row, Span
from mill.models.tokens.tokenizer import Prompt
from mill.support.clocks import PROBING, VERIFYING, phase
from mill.support.terminal import TokenCount, describe, warn

MOST_SEQUENCES = 512  # decoded at once
MOST_VERIFIED = 16  # rows in a batch
RowCheck = Callable[[Row, list[Response]], None]
TextCheck = Callable[[ActiveSequence], None]


class PrefixEngine:
    """A loaded model on the fast path. `disabled` is why that path is off; empty if it is on."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        eos_ids: list[int],
        *,
        free_memory: Callable[[], None],
        disabled: str = "",
        pads: bool = True,
        log: PathLog | None = None,
    ) -> None:
        """With `pads`, rows that are computed by themselves are padded in batches. `log` has what was verified."""
        self.model, self.tokenizer, self.eos_ids = model, tokenizer, eos_ids
        self.free_memory = free_memory
        self.disabled = disabled
        self._longest = 0  # row of the stream
        self._sampled: list[tuple[Row, list[Response]]] = []
        self._log = log or PathLog()
        for verification in self._log.verified.values():
            verification.restart()
        if not disabled:
            make_current(model.device)
            with phase(PROBING):
                if obstacle := sharing_obstacle(model):
                    self.disable(obstacle)
        self.padding_obstacle = padding_obstacle(model) if self.disabled and pads else ""
        if self.padding_obstacle:
            warn(self.padding_obstacle)

    def disable(self, reason: str) -> None:
        self.disabled = reason
        warn(f"prefix sharing is off: {reason}; rows are computed in plain batches")

    def verify(
        self, stage: str, key: str, length: int, found: Sequence[float], plain: Callable[[], Sequence[float]], noise: float
    ) -> None:
        """Compute the row of a request again, where it is its turn."""
        verification = self._log.verified[stage]
        if verification.is_due(length, self._longest) or verification.samples(key):
            self._verify(stage, length, found, plain, noise)

    def _verify(
        self,
        stage: str,
        length: int,
        found: Sequence[float],
        plain: Callable[[], Sequence[float]],
        noise: float,
        wanted: Sequence[float] | None = None,
    ) -> None:
        """A fast path that fails is switched off."""
        try:
            with phase(VERIFYING):
                self._log.verified[stage].check(self.model, length, found, plain, noise, wanted)
        except FastPathFailed as failure:
            self.disable(str(failure))
            raise

    @cached_property
    def token_noise(self) -> float:
        """How far rounding moves the log-probability of a token."""
        return token_noise(self.model)

    def score(
        self,
        rows: Sequence[Row],
        *,
        batch_size: int | None,
        count: TokenCount | None = None,
        work: Work | None = None,
        check: RowCheck | None = None,
    ) -> Iterator[tuple[Row, list[Response] | NotShared]]:
        """Every row with the responses of its spans, or why it must be scored by itself. `count` has the tokens so far,
        `work` is made of the rows, if it is there. `check` verifies a row before it is returned."""
        check = check or self._check_row
        self._longest, self._sampled = max((len(row.ids) for row in rows), default=0), []
        left = dict.fromkeys(rows)
        if not self.disabled and rows:
            make_current(self.model.device)
            tokens = memory.scoring_tokens(self.model, logits_per_token=0.0)
            if batch_size:  # as many tokens as so many of the longest rows have
                tokens = min(tokens, batch_size * max(1, *(len(row.ids) for row in rows)))
            budget = Budget(tokens, memory.logit_rows(self.model))
            try:
                scorer = PrefixScorer(self.model, budget, self.free_memory, count=count)
                for row, outcome in scorer.run(rows, work):
                    if isinstance(outcome, list):
                        check(row, outcome)
                    del left[row]
                    yield row, outcome
                self._check_sampled()
            except MillError:
                raise
            except Exception as error:
                self._fall_back(error)
        for row in left:
            yield row, NotShared(self.disabled)

    def _fall_back(self, error: Exception) -> None:
        error.__traceback__ = None  # which references the failed pass's tensors
        self.disable(str(error) if isinstance(error, Unsupported) else f"a pass failed: {describe(error)}")
        self.free_memory()

    def _check_row(self, row: Row, found: list[Response]) -> None:
        verification = self._log.verified[paths.SCORING]
        if row.requests and verification.is_due(len(row.ids), self._longest):
            self._verify_row(row, found)
        elif row.requests and verification.samples(row.requests[0].key):
            self._sampled.append((row, found))

    def _verify_row(self, row: Row, found: list[Response], wanted: list[Response] | None = None) -> None:
        def plain() -> list[float]:
            return scores_of(score_rows(self.model, [row])[0])

        noise = self.token_noise * max(len(span.tokens) for span in row.spans) ** 0.5
        known = None if wanted is None else scores_of(wanted)
        self._verify(paths.SCORING, len(row.ids), scores_of(found), plain, noise, known)

    def _check_sampled(self) -> None:
        """In padded batches: one by one they would wait for the passes that are running."""
        sampled, self._sampled = sorted(self._sampled, key=lambda pair: len(pair[0].ids)), []
        most = memory.scoring_tokens(self.model, logits_per_token=0.2)
        while sampled:
            count = max(1, min(MOST_VERIFIED, most // len(sampled[-1][0].ids)))
            batch, sampled = sampled[:count], sampled[count:]
            try:
                with phase(VERIFYING):
                    wanted: Sequence[list[Response] | None] = score_rows(self.model, [row for row, _ in batch])
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                wanted = [None] * len(batch)
            for (row, found), one in zip(batch, wanted, strict=True):
                self._verify_row(row, found, one)

    def _check_text(self, sequence: ActiveSequence) -> None:
        """Teacher-forced, each token of a text must be the most likely one, or nearly so."""
        prompt, generated = sequence.prompt, sequence.generated
        if sequence.sampler.broken:
            return
        row = Row([*prompt.ids, *generated[:-1]], [Span(len(prompt.ids) - 1, generated)], [])

        def plain() -> list[float]:
            logits, _ = forward_rows(self.model, [row])
            return sequence.sampler.replayed().gaps(logits[0], prompt.ids, generated)

        zeros = [0.0] * len(generated)
        self.verify(paths.DECODING, prompt.request.key, len(prompt.ids), zeros, plain, self.token_noise)

    def decode(
        self,
        prompts: Sequence[Prompt],
        *,
        batch_size: int | None,
        count: TokenCount | None = None,
        check: TextCheck | None = None,
    ) -> Iterator[tuple[Prompt, list[Response] | NotShared]]:
        """Every prompt with its answer, or why it must be decoded in plain batches. `count` has the tokens so far. `check`
        verifies an answer before it is returned."""
        window = shortest_window(self.model.config.get_text_config())
        fitting: list[Prompt] = []
        for prompt in prompts:
            if not self.disabled and window is not None and len(prompt.ids) + prompt.max_new_tokens >= window:
                yield prompt, too_long(window)
            else:
                fitting.append(prompt)
        make_current(self.model.device)
        self._longest = max((len(prompt.ids) for prompt in fitting), default=0)
        for group in self._groups(fitting):
            left = dict.fromkeys(group)
            try:
                for prompt, outcome in self._decode(group, batch_size or MOST_SEQUENCES, count, check):
                    del left[prompt]
                    yield prompt, outcome
            except MillError:
                raise
            except Exception as error:
                self._fall_back(error)
            for prompt in left:
                yield prompt, NotShared(self.disabled)

    def _decode(
        self, prompts: list[Prompt], most: int, count: TokenCount | None, check: TextCheck | None
    ) -> Iterator[tuple[Prompt, list[Response] | NotShared]]:
        """With half as many sequences at once whenever memory runs out."""
        left = dict.fromkeys(prompts)
        while left and not self.disabled:
            if not most:
                yield from ((prompt, NotShared(OUT_OF_MEMORY)) for prompt in left)
                return
            decoder = self.decoder(count, check)
            try:
                for prompt, answer in decoder.run(list(left), most):
                    del left[prompt]
                    # What is not a number in one slot may reach others: the plain path says whose it is.
                    yield prompt, NotShared(NOT_NUMBERS) if answer.error == NOT_NUMBERS else [answer]
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                error.__traceback__ = None  # which references the failed pass's tensors
                most = min(most, len(left)) // 2
            del decoder  # nothing refers back to it, so its memory is free without a garbage collection
            self.free_memory() if left else memory.empty_caches()

    def _groups(self, prompts: list[Prompt]) -> list[list[Prompt]]:
        """On a CPU sequences of very different lengths would reserve the slot of the longest for all."""
        groups: dict[int, list[Prompt]] = {}
        for prompt in prompts:
            length = 0 if self.model.device.type == "cuda" else prompt.max_new_tokens.bit_length()
            groups.setdefault(length, []).append(prompt)
        return list(groups.values())

    def decoder(self, count: TokenCount | None = None, check: TextCheck | None = None) -> ContinuousDecoder:
        pass_tokens = min(memory.scoring_tokens(self.model, logits_per_token=0.0), memory.MOST_PREFILL_TOKENS)
        tokens = memory.slot_tokens(self.model, pass_tokens)
        return ContinuousDecoder(
            self.model,
            self.tokenizer,
            self.eos_ids,
            tokens=tokens,
            pass_tokens=pass_tokens,
            count=count,
            check=check or self._check_text,
        )


def scores_of(responses: Sequence[Response]) -> list[float]:
    return [response.score if response.score is not None else float("nan") for response in responses]
