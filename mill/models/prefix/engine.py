"""Scoring and decoding with shared prefixes, and when they are switched off.

Only two things switch a request to the other path, padded batches: the model is not supported (`Unsupported`), or memory
runs out. Any other exception is an error of the requests that raised it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mill.api.batching import GIVE_UP_AFTER, describe, is_out_of_memory
from mill.api.errors import MillError, ModelBroken
from mill.api.progress import TokenCount
from mill.api.response import Response
from mill.api.timing import PROBING, phase
from mill.api.warnings import warn
from mill.models import memory
from mill.models.device import make_current
from mill.models.prefix.continuous import ContinuousDecoder
from mill.models.prefix.pack import Unsupported
from mill.models.prefix.packed_scoring import OUT_OF_MEMORY, Budget, NotShared, PrefixScorer, Work, shortest_window, too_long
from mill.models.prefix.probe import sharing_obstacle
from mill.models.tokens.rows import Row
from mill.models.tokens.tokenizer import Prompt

MOST_SEQUENCES = 512  # decoded at once


class PrefixEngine:
    """A loaded model on the fast path. `disabled` is why that path is off; empty if it is on."""

    def __init__(
        self, model: Any, tokenizer: Any, eos_ids: list[int], *, free_memory: Callable[[], None], disabled: str = ""
    ) -> None:
        self.model, self.tokenizer, self.eos_ids = model, tokenizer, eos_ids
        self.free_memory = free_memory
        self.disabled = disabled
        if not disabled:
            make_current(model.device)
            with phase(PROBING):
                self._disable(sharing_obstacle(model))

    def _disable(self, reason: str) -> None:
        self.disabled = reason
        if reason:
            warn(f"prefix sharing is off: {reason}; every row is computed by itself")

    def score(
        self,
        rows: Sequence[Row],
        *,
        batch_size: int | None,
        healthy: bool,
        count: TokenCount | None = None,
        work: Work | None = None,
    ) -> Iterator[tuple[Row, list[Response] | NotShared]]:
        """Every row with the responses of its spans, or why it must be scored by itself. `count` has the tokens so far,
        `work` is made of the rows, if it is there."""
        left = dict.fromkeys(rows)
        if not self.disabled and rows:
            make_current(self.model.device)
            tokens = memory.scoring_tokens(self.model, logits_per_token=0.0)
            if batch_size:  # as many tokens as so many of the longest rows have
                tokens = min(tokens, batch_size * max(1, *(len(row.ids) for row in rows)))
            budget = Budget(tokens, memory.logit_rows(self.model))
            try:
                scorer = PrefixScorer(self.model, budget, self.free_memory, healthy=healthy, count=count)
                for row, outcome in scorer.run(rows, work):
                    del left[row]
                    yield row, outcome
            except Unsupported as error:
                self._disable(str(error))
        for row in left:
            yield row, NotShared(self.disabled)

    def decode(
        self, prompts: Sequence[Prompt], *, batch_size: int | None, healthy: bool, count: TokenCount | None = None
    ) -> Iterator[tuple[Prompt, Response | NotShared]]:
        """Every prompt with its answer, or why it must be decoded in plain batches. `count` has the tokens so far."""
        window = shortest_window(self.model.config.get_text_config())
        fitting: list[Prompt] = []
        for prompt in prompts:
            if not self.disabled and window is not None and len(prompt.ids) + prompt.max_new_tokens > window:
                yield prompt, too_long(window)
            else:
                fitting.append(prompt)
        make_current(self.model.device)
        decoding = _Decoding(self, healthy, count if count is not None else TokenCount())
        for group in self._groups(fitting):
            left = dict.fromkeys(group)
            try:
                for prompt, outcome in decoding.run(group, batch_size or MOST_SEQUENCES) if not self.disabled else ():
                    del left[prompt]
                    yield prompt, outcome
            except Unsupported as error:
                self._disable(str(error))
            for prompt in left:
                yield prompt, NotShared(self.disabled)

    def _groups(self, prompts: list[Prompt]) -> list[list[Prompt]]:
        """On a CPU sequences of very different lengths would reserve the slot of the longest for all."""
        groups: dict[int, list[Prompt]] = {}
        for prompt in prompts:
            length = 0 if self.model.device.type == "cuda" else prompt.max_new_tokens.bit_length()
            groups.setdefault(length, []).append(prompt)
        return list(groups.values())

    def decoder(self, count: TokenCount | None = None) -> ContinuousDecoder:
        pass_tokens = min(memory.scoring_tokens(self.model, logits_per_token=0.0), memory.MOST_PREFILL_TOKENS)
        tokens = memory.slot_tokens(self.model, pass_tokens)
        return ContinuousDecoder(
            self.model, self.tokenizer, self.eos_ids, tokens=tokens, pass_tokens=pass_tokens, count=count
        )


class _Decoding:
    """Continuous decoding that survives failures: with half as many sequences when memory runs out, with half of the prompts
    after another exception, until the prompt that raises it is alone."""

    def __init__(self, engine: PrefixEngine, healthy: bool, count: TokenCount) -> None:
        self.engine, self.healthy, self.count, self.failures = engine, healthy, count, 0

    def run(self, prompts: list[Prompt], most: int) -> Iterator[tuple[Prompt, Response | NotShared]]:
        left = dict.fromkeys(prompts)
        error: Exception | None = None
        decoder = self.engine.decoder(self.count)
        try:
            for prompt, answer in decoder.run(prompts, most):
                del left[prompt]
                self.healthy = True
                yield prompt, answer
        except (MillError, Unsupported):
            raise
        except Exception as raised:
            error = raised.with_traceback(None)  # which references the failed pass's tensors
        del decoder  # nothing refers back to it, so its memory is free without a garbage collection
        if error is None:
            memory.empty_caches()
            return
        self.engine.free_memory()
        yield from self._again(list(left), most, error)

    def _again(self, left: list[Prompt], most: int, error: Exception) -> Iterator[tuple[Prompt, Response | NotShared]]:
        if is_out_of_memory(error):
            half = min(most, len(left)) // 2
            yield from self.run(left, half) if half else ((prompt, NotShared(OUT_OF_MEMORY)) for prompt in left)
        elif len(left) > 1:
            middle = len(left) // 2
            yield from self.run(left[:middle], most)
            yield from self.run(left[middle:], most)
        else:
            self.failures += 1
            if self.failures >= GIVE_UP_AFTER and not self.healthy:
                raise ModelBroken(f"the model failed on each of the first {self.failures} requests: {describe(error)}")
            warn(f"a pass of continuous decoding failed: {describe(error)}; exact=true decodes in plain batches")
            yield left[0], Response(error=describe(error))
