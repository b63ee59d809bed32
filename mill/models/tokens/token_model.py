"""The base of backends that run a model in this process: requests as token ids, errors for what does not fit."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING

from mill.api.batching import BatchLimits, Completed, Hook, Unit, as_response
from mill.api.errors import CannotServe
from mill.api.model import InputTokens, MillModel
from mill.api.request import LOGLIKELIHOOD, Request
from mill.api.response import Response
from mill.models.tokens.chat_template import TemplateFailed, check_variables, takes_tools, wanted
from mill.models.tokens.pairs import TokenPair
from mill.models.tokens.tool_calls import WARNING
from mill.support.terminal import warn

if TYPE_CHECKING:
    from mill.models.tokens.tokenizer import Tokens

NO_TOKENS = "the continuation has no tokens in the vocabulary of this model"
MakeUnits = Callable[[Sequence[Request], Sequence[TokenPair]], list[Unit]]


class TokenModel(MillModel):
    """A subclass provides `tokens`, and defines how pairs become units and how units are computed."""

    renders_before_loading = True
    """Whether `tokens` needs neither weights nor a running engine."""
    _describes_tools = False

    @property
    def tokens(self) -> Tokens:
        raise self._cannot("tokenized")

    def has_chat_template(self) -> bool:
        return self.tokens.has_template

    @property
    def chat_template(self) -> str:
        """Its text; several templates of one model as one text."""
        return self.tokens.template

    def rendered_prompt(self, request: Request) -> str:
        if isinstance(request.context, str) and not self.use_chat_template:
            return request.context
        return self.tokens.rendered(request)

    def check(self, request: Request) -> None:
        super().check(request)
        if wanted(request):
            check_variables(request, self.chat_template, self.model_name)
        if not request.media and self.renders_before_loading:
            try:
                self.rendered_prompt(request)
            except TemplateFailed as error:
                raise CannotServe(f"{self.model_name}: {error}") from error
        if request.tools and not takes_tools(self.chat_template) and not self._describes_tools:
            self._describes_tools = True
            warn(f"{self.model_name}: {WARNING}")

    def warnings(self) -> list[str]:
        return [*super().warnings(), *([WARNING] if self._describes_tools else [])]

    def count_tokens(self, requests: Sequence[Request]) -> int | None:
        (found,) = self.count_each([requests])
        return None if found is None else found.count

    def count_each(self, groups: Sequence[Sequence[Request]]) -> list[InputTokens | None]:
        texts = [request for group in groups for request in group if not request.media]
        lengths_and_rooms: Iterator[tuple[int, int]] = iter(())
        if texts:
            tokens = self._counting_tokens(texts)
            lengths_and_rooms = zip(tokens.count(texts), map(tokens.room, texts), strict=True)
        found: list[InputTokens | None] = []
        for group in groups:
            lengths = [next(lengths_and_rooms) for request in group if not request.media]
            known = len(lengths) == len(group)  # with media only the processor knows
            total, cut = sum(map(min, lengths)), sum(length > room for length, room in lengths)
            found.append(InputTokens(total, cut) if known else None)
        return found

    def _counting_tokens(self, requests: Sequence[Request]) -> Tokens:
        return self.tokens

    def _tracked(self, kind: str, requests: Sequence[Request]) -> Generator[Completed, None, None]:
        """A request that the chat template cannot render is an error of its own; the others are computed."""
        done: set[int] = set()
        try:
            for request, response in super()._tracked(kind, requests):
                done.add(id(request))
                yield request, response
        except TemplateFailed:
            left = [request for request in requests if id(request) not in done]
            errors = [self._template_error(request) for request in left]
            failed = [(one, Response(error=error)) for one, error in zip(left, errors, strict=True) if error is not None]
            if not failed:
                raise
            yield from failed
            yield from super()._tracked(kind, [one for one, error in zip(left, errors, strict=True) if error is None])

    def _template_error(self, request: Request) -> str | None:
        try:
            self.rendered_prompt(request)
        except TemplateFailed as error:
            return str(error)
        return None

    def _stream_checked(self, kind: str, units: Sequence[Unit], hook: Hook, limits: BatchLimits) -> Iterator[Completed]:
        """Run units; a response without what its kind needs, or with NaN, becomes its request's error."""

        def checked(batch: list[Unit]) -> list[list[Response]]:
            return [[as_response(response, kind) for response in responses] for responses in hook(batch)]

        return self._stream_units(units, checked, limits)

    def _fitting_pairs(
        self, requests: Sequence[Request], pairs: Sequence[TokenPair]
    ) -> tuple[list[Request], list[TokenPair], list[Completed]]:
        """Requests whose continuation has tokens and fits the context, their pairs, and the others with their errors."""
        too_long = Response(error=f"the continuation is longer than the context of {self.tokens.window} tokens")
        fitting: list[tuple[Request, TokenPair]] = []
        errors: list[Completed] = []
        for request, pair in zip(requests, pairs, strict=True):
            if not pair.fits:
                errors.append((request, too_long))
            elif not pair.continuation:
                errors.append((request, Response(error=NO_TOKENS)))
            else:
                fitting.append((request, pair))
        return [request for request, _ in fitting], [pair for _, pair in fitting], errors

    def _score_pairs(
        self, requests: Sequence[Request], make_units: MakeUnits, hook: Hook, limits: BatchLimits
    ) -> Iterator[Completed]:
        """Log-likelihoods: pairs that fit the context are made into units, the others are errors."""
        fitting, pairs, too_long = self._fitting_pairs(requests, self.tokens.pairs(requests))
        yield from too_long
        yield from self._stream_checked(LOGLIKELIHOOD, make_units(fitting, pairs), hook, limits)
