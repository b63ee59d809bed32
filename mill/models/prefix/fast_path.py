"""Whether the rows of a loaded model are computed together, why not, and what shows in every run that it is right.

The plain path is the definition. What a fast path cannot do, or fails to do, is left to it with the reason; rows that are
computed on both show in every run that they agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

from mill.api.batching import BatchLimits, Completed, as_response, free_memory
from mill.api.errors import FastPathFailed, MillError
from mill.api.request import GENERATE, LOGLIKELIHOOD, Request
from mill.api.response import Response
from mill.models.device import logit_rows, make_current, scoring_tokens
from mill.models.prefix import paths
from mill.models.prefix.paths import PathLog
from mill.models.prefix.proof import padding_obstacle, sharing_obstacle, token_noise
from mill.models.prefix.scoring import Budget, NotShared, PrefixScorer, Work
from mill.models.prefix.trie import Unsupported
from mill.models.tokens.rows import Row
from mill.support.clocks import PROBING, VERIFYING, phase
from mill.support.terminal import TokenCount, describe, warn


class HasRequests(Protocol):
    @property
    def requests(self) -> Sequence[Request]: ...


AnyRow = TypeVar("AnyRow", bound=HasRequests)
STAGES = {
    paths.SCORING: (paths.PACKED, paths.PADDED, LOGLIKELIHOOD),
    paths.DECODING: (paths.CONTINUOUS, paths.PLAIN, GENERATE),
}
"""The fast path of each stage, the plain one, and the kind of answers."""


class FastPath:
    """Of a loaded model. `disabled` is why it is off; empty if it is on."""

    def __init__(self, model: Any, log: PathLog, *, disabled: str = "", pads: bool = True) -> None:
        """With `pads`, rows that are computed by themselves are padded in batches. `log` has what was verified."""
        self.model, self.log, self.disabled = model, log, disabled
        self.longest = 0
        """Of the rows of the stream."""
        for verification in log.verified.values():
            verification.restart()
        if not disabled:
            make_current(model.device)
            with phase(PROBING):
                if obstacle := sharing_obstacle(model):
                    self.disable(obstacle)
        self.padding_obstacle = padding_obstacle(model) if self.disabled and pads else ""
        """Why rows are not padded."""
        if self.padding_obstacle:
            warn(self.padding_obstacle)

    def disable(self, reason: str) -> None:
        self.disabled = reason
        warn(f"prefix sharing is off: {reason}; rows are computed in plain batches")

    def alone(self, batch_size: int | None) -> bool:
        """Whether rows that are not shared are computed one by one."""
        return batch_size == 1 or bool(self.padding_obstacle)

    def limits(self, batch_size: int | None, tokens: int) -> BatchLimits:
        """Of plain batches: the requested size, else as many tokens as fit."""
        size = 1 if self.alone(batch_size) else batch_size
        return BatchLimits(requests=size) if size else BatchLimits(tokens=tokens)

    @contextmanager
    def falling_back(self) -> Iterator[None]:
        """An error inside this context, but those of mill, switches the fast path off."""
        try:
            yield
        except MillError:
            raise
        except Exception as error:
            error.__traceback__ = None  # which references the failed pass's tensors
            self.disable(str(error) if isinstance(error, Unsupported) else f"a pass failed: {describe(error)}")
            free_memory()

    @cached_property
    def token_noise(self) -> float:
        """How far rounding moves the log-probability of a token."""
        return token_noise(self.model)

    def packed(
        self, rows: Sequence[Row], count: TokenCount, batch_size: int | None = None, work: Work | None = None
    ) -> Iterator[tuple[Row, list[Response] | NotShared]]:
        """Every row with the responses of its spans, or why it must be scored by itself. None where the fast path is off.
        `work` is made of the rows, if it is there."""
        if self.disabled or not rows:
            return iter(())
        make_current(self.model.device)
        self.longest = max(len(row.ids) for row in rows)
        tokens = scoring_tokens(self.model, logits_per_token=0.0)
        if batch_size:  # as many tokens as so many of the longest rows have
            tokens = min(tokens, batch_size * max(1, self.longest))
        budget = Budget(tokens, logit_rows(self.model))
        return PrefixScorer(self.model, budget, count=count).run(rows, work)

    def is_due(self, stage: str, length: int) -> bool:
        """Whether a row of this length is computed again at once: the first ones, and the longest."""
        return self.log.verified[stage].is_due(length, self.longest)

    def samples(self, stage: str, key: str) -> bool:
        """Whether the row of this request is one of those that are computed again by chance."""
        return self.log.verified[stage].samples(key)

    def verify(
        self,
        stage: str,
        length: int,
        found: Sequence[float],
        plain: Callable[[], Sequence[float]],
        *,
        tokens: int = 1,
    ) -> None:
        """Compare a row with the plain path; a result is the sum of at most so many `tokens`. A fast path that fails is
        switched off, and what it answered is computed again."""
        try:
            with phase(VERIFYING):
                noise = self.token_noise * tokens**0.5
                self.log.verified[stage].check(self.model, length, found, plain, noise)
        except FastPathFailed as failure:
            self.disable(str(failure))
            self.log.fail(str(failure))
            raise


class Waiting(Generic[AnyRow]):
    """Rows that the fast path answers, or leaves to the plain one."""

    def __init__(self, fast: FastPath, stage: str, rows: Sequence[AnyRow], batch_size: int | None) -> None:
        self._fast, self._stage, self._rows = fast, stage, dict.fromkeys(rows)
        self._path, plain, self._kind = STAGES[stage]
        self._plain = paths.ALONE if fast.alone(batch_size) else plain
        self._left: list[AnyRow] = []

    def answered(self, row: AnyRow, outcome: list[Response] | NotShared) -> list[Completed]:
        """The requests of a row with their responses; none where it is left to the plain path."""
        del self._rows[row]
        requests = row.requests
        if isinstance(outcome, NotShared):
            self._left.append(row)
            self._fast.log.add(self._stage, self._plain, len(requests), outcome.reason)
            return []
        self._fast.log.add(self._stage, self._path, len(requests))
        responses = [as_response(response, self._kind) for response in outcome]
        return list(zip(requests, responses, strict=True))

    def left(self) -> list[AnyRow]:
        """The rows that the fast path did not answer: those that it gave back, and all others where it is off."""
        for row in list(self._rows):
            self.answered(row, NotShared(self._fast.disabled))
        return self._left


def scores_of(responses: Sequence[Response]) -> list[float]:
    return [response.score if response.score is not None else float("nan") for response in responses]
