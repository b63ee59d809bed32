"""The base of backends that render and tokenize prompts in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mill.api.errors import CannotServe
from mill.api.model import InputTokens, MillModel, cannot_serve
from mill.api.request import Request
from mill.models.tokens.tokenizer import TemplateFailed, check_variables, takes_tools, wanted
from mill.models.tokens.tool_calls import WARNING

if TYPE_CHECKING:
    from mill.models.media.inputs import MediaInputs
    from mill.models.tokens.tokenizer import Tokens

UNTEMPLATED = (
    "the model has no chat template: its prompts are their texts, with the processor's placeholders for media between them"
)


class TokenModel(MillModel):
    """A subclass has `tokens` and, if it takes images, video or audio, `media`."""

    renders_before_loading = True
    """Whether `tokens` needs neither weights nor a running engine."""

    @property
    def tokens(self) -> Tokens:
        raise cannot_serve(self, "tokenized")

    @property
    def media(self) -> MediaInputs:
        raise cannot_serve(self, "media")

    @property
    def chat_template(self) -> str:
        """Its text; several templates of one model as one text."""
        return self.tokens.template

    def has_chat_template(self) -> bool:
        return bool(self.chat_template)

    def rendered_prompt(self, request: Request) -> str:
        if request.media:
            return self.media.rendered(request)
        if isinstance(request.context, str) and not self.use_chat_template:
            return request.context
        return self.tokens.rendered(request)

    def check(self, request: Request) -> list[str]:
        warnings = super().check(request)
        if wanted(request):
            check_variables(request, self.chat_template, self.model_name)
        if not request.media and self.renders_before_loading:
            try:
                self.rendered_prompt(request)
            except TemplateFailed as error:
                raise CannotServe(f"{self.model_name}: {error}") from error
        if request.tools and not takes_tools(self.chat_template):
            warnings.append(WARNING)
        if request.media and not self.has_chat_template():
            warnings.append(UNTEMPLATED)
        return warnings

    def input_tokens(self, groups: Sequence[Sequence[Request]]) -> list[InputTokens | None]:
        texts = [request for group in groups for request in group if not request.media]
        lengths_and_rooms: Iterator[tuple[int, int]] = iter(())
        if texts:
            tokens = self._counting_tokens(texts)
            lengths_and_rooms = zip(tokens.count(texts), map(tokens.room, texts), strict=True)
        counted: list[InputTokens | None] = []
        for group in groups:
            lengths = [next(lengths_and_rooms) for request in group if not request.media]
            known = len(lengths) == len(group)  # with media only the processor knows
            total, cut = sum(map(min, lengths)), sum(length > room for length, room in lengths)
            counted.append(InputTokens(total, cut) if known else None)
        return counted

    def _counting_tokens(self, requests: Sequence[Request]) -> Tokens:
        """A tokenizer that counts the tokens of these."""
        return self.tokens
