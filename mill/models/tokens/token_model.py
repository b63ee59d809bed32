"""What backends that run a model in this process share: requests as token ids, and answers for what does not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mill.api.batching import BatchLimits, Hook, Observer, Unit, as_response
from mill.api.model import MillModel, watched
from mill.api.request import LOGLIKELIHOOD, Request
from mill.api.response import Response
from mill.models.tokens.pairs import Pair

if TYPE_CHECKING:
    from mill.models.tokens.tokenizer import Tokens

MakeUnits = Callable[[Sequence[Request], Sequence[Pair]], list[Unit]]


class TokenModel(MillModel):
    """A subclass has `tokens` and says how pairs become units and how units are computed."""

    @property
    def tokens(self) -> Tokens:
        raise self._cannot("tokenized")

    def has_chat_template(self) -> bool:
        return self.tokens.has_template

    def rendered_prompt(self, request: Request) -> str:
        if isinstance(request.context, str) and not self.use_chat_template:
            return request.context
        return self.tokens.render(request.context)

    def count_tokens(self, requests: Sequence[Request]) -> int | None:
        if any(request.media for request in requests):
            return None  # only the processor knows, after it has seen them
        texts = [self.tokens.render(request.context) + request.continuation for request in requests]
        return sum(map(len, self.tokens.encode_all(texts)))

    def _answer_units(
        self,
        kind: str,
        requests: Sequence[Request],
        units: Sequence[Unit],
        hook: Hook,
        limits: BatchLimits,
        observer: Observer | None,
    ) -> list[Response]:
        """Run units that hold these requests; an answer that is none, such as NaN, becomes its request's error."""

        def checked(batch: list[Unit]) -> list[list[Response]]:
            return [[as_response(answer, kind) for answer in answers] for answers in hook(batch)]

        with watched(kind, requests, observer) as watching:
            found = self._run_units(units, checked, limits, watching)
            for request in requests:
                if id(request) not in found:
                    found[id(request)] = Response(
                        error=f"the continuation is longer than the context of {self.tokens.window} tokens"
                    )
                    watching.answered(request, found[id(request)])
        return [found[id(request)] for request in requests]

    def _score_pairs(
        self, requests: Sequence[Request], make_units: MakeUnits, hook: Hook, limits: BatchLimits, observer: Observer | None
    ) -> list[Response]:
        """Log-likelihoods: pairs that fit the context are made into units, the others are errors."""
        pairs = list(zip(requests, self.tokens.pairs(requests), strict=True))
        fitting = [(request, pair) for request, pair in pairs if pair.fits]
        units = make_units([request for request, _ in fitting], [pair for _, pair in fitting])
        return self._answer_units(LOGLIKELIHOOD, requests, units, hook, limits, observer)
