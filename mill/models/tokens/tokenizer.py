"""Prompts as a model gets them: rendered by its chat template, tokenized, and fitted into its context."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from mill.api.batching import Completed, Unit
from mill.api.errors import CannotServe, ModelError
from mill.api.message import Context, Message
from mill.api.request import LOGLIKELIHOOD, ROLLING, Request
from mill.api.response import Response
from mill.models.tokens.pieces import Pieces
from mill.models.tokens.reasoning import opens_reasoning
from mill.models.tokens.rows import EmbeddedPrefix, Row, Span, TokenPair, make_pair, move_spaces, with_prefix
from mill.models.tokens.tool_calls import describe_tools
from mill.support.clocks import TOKENIZING, phase
from mill.support.terminal import describe

THINKING = ("enable_thinking", "thinking")  # what templates call the switch for reasoning
EFFORT = "reasoning_effort"
TEMPLATE_OPTIONS = ("chat_template_kwargs", EFFORT)


class TemplateFailed(ModelError):
    """A chat template that raises an exception for the messages of a request, such as for a role that it does not know."""


def template_text(chat_template: Any) -> str:
    """A chat template as one text; some models have several, by name."""
    if isinstance(chat_template, Mapping):
        return "\n".join(map(str, chat_template.values()))
    return str(chat_template or "")


def uses(template: str, variable: str) -> bool:
    return re.search(rf"\b{re.escape(variable)}\b", template) is not None


def template_variables(request: Request, template: str) -> dict[str, Any]:
    """The variables that a request gives the template. A reasoning effort of none switches reasoning off, also in templates
    that know no other."""
    variables = dict(request.options.get("chat_template_kwargs", {}))
    effort = request.options.get(EFFORT)
    if effort is None:
        return variables
    if uses(template, EFFORT):
        return {EFFORT: effort, **variables}
    switch = next((name for name in THINKING if uses(template, name)), None)
    return {switch: False, **variables} if switch and effort == "none" else variables


def check_variables(request: Request, template: str, who: str) -> None:
    """Refuse variables that the template does not use, and an effort that has no effect on it."""
    refuse_plain_text(request)
    unused = [name for name in request.options.get("chat_template_kwargs", {}) if not uses(template, name)]
    if unused:
        raise CannotServe(f"the chat template of {who} does not use {_names(unused)} of chat_template_kwargs")
    effort = request.options.get(EFFORT)
    if effort is None or uses(template, EFFORT):
        return
    switch = next((name for name in THINKING if uses(template, name)), None)
    if switch is None:
        raise CannotServe(f"reasoning_effort={effort} has no effect on {who}: its chat template knows no such variable")
    if effort != "none":
        raise CannotServe(
            f"reasoning_effort={effort} has no effect on {who}: its chat template only switches reasoning on and off; "
            f"use none, or chat_template_kwargs {switch}=true"
        )


def takes_tools(template: str) -> bool:
    return uses(template, "tools")


def refuse_plain_text(request: Request) -> None:
    """Refuse options that concern the chat template where the request does not go through one."""
    names = wanted(request)
    if names and isinstance(request.context, str):
        need = "needs" if len(names) == 1 else "need"
        raise CannotServe(f"{' and '.join(names)} {need} a chat template: add --apply_chat_template")


def wanted(request: Request) -> list[str]:
    """The options of a request that concern the chat template."""
    return [name for name in TEMPLATE_OPTIONS if request.options.get(name)]


def tool_fields(message: Message) -> dict[str, Any]:
    """What a message about tools has beside role and content, as templates take it: arguments as objects."""
    fields: dict[str, Any] = {}
    if message.tool_calls:
        fields["tool_calls"] = [
            {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": dict(call.arguments or {})}}
            for call in message.tool_calls
        ]
    given = {"tool_call_id": message.tool_call_id, "name": message.name}
    return fields | {name: value for name, value in given.items() if value}


def _names(names: Iterable[str]) -> str:
    return " and ".join(names)


NO_TOKENS = "the continuation has no tokens in the vocabulary of this model"
T = TypeVar("T")


def rolling_windows(ids: list[int], window: int) -> list[TokenPair]:
    """Windows over `ids`, whose first token is context and is not scored. `window` is the longest input of the model."""
    windows = []
    for first in range(1, len(ids), window):
        end = min(first + window, len(ids))
        start = max(0, end - 1 - window)
        windows.append(TokenPair(ids[start:end], first - start, 0))
    return windows


@dataclass(frozen=True, eq=False)
class Prompt:
    """A generation request as token ids."""

    request: Request
    ids: list[int]
    truncated: int
    max_new_tokens: int
    opened: bool = False
    """Whether it ends inside of reasoning, which the chat template began."""
    prefix: EmbeddedPrefix | None = None

    @property
    def requests(self) -> list[Request]:
        return [self.request]

    @property
    def length(self) -> int:
        return len(self.ids)

    @property
    def keys(self) -> list[int]:
        """What prompts are compared by: ids, or the keys of embeddings."""
        return self.ids if self.prefix is None else self.prefix.keys_of(self.ids)

    @property
    def shift(self) -> int:
        """The position of a generated token minus its index."""
        return 0 if self.prefix is None else self.prefix.shift


class Tokens:
    """A tokenizer with the rules of scoring. `window` is the longest input of the model.

    With a `processor`, the chat template is the processor's, which takes messages as lists of parts. `in_pieces` is whether
    texts may be tokenized in pieces.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        window: int,
        add_bos: bool | None = None,
        model_type: str = "",
        chat: bool = False,
        processor: Any = None,
        in_pieces: bool = True,
    ) -> None:
        self.tokenizer, self.processor, self.window, self.chat = tokenizer, processor, window, chat
        self.bos: int | None = tokenizer.bos_token_id
        self.prefix: int | None = self.bos if self.bos is not None else tokenizer.eos_token_id
        self.adds_bos = self._detect_bos(model_type) if add_bos is None else add_bos
        self._pieces = Pieces(tokenizer, self._encode, usable=in_pieces)

    def _detect_bos(self, model_type: str) -> bool:
        """Whether the tokenizer starts texts with BOS. Gemma needs it, also where its files do not say so."""
        if self.bos is None:
            return False
        (ids,) = self._tokenize(["a"], add_special_tokens=True)
        return ids[:1] == [self.bos] or model_type.startswith("gemma")

    def encode(self, text: str) -> list[int]:
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, each distinct text tokenized once; BOS in front unless the text has it."""
        distinct = list(dict.fromkeys(texts))
        encoded = self._pieces.encode(distinct)
        ids_by_text = {text: self._with_bos(ids) for text, ids in zip(distinct, encoded, strict=True)}
        return [ids_by_text[text] for text in texts]

    def _encode(self, texts: list[str]) -> list[list[int]]:
        return self._tokenize(texts, add_special_tokens=False) if texts else []

    def _tokenize(self, texts: list[str], *, add_special_tokens: bool) -> list[list[int]]:
        try:
            ids: list[list[int]] = self.tokenizer(texts, add_special_tokens=add_special_tokens)["input_ids"]
        except Exception as error:  # a vocabulary may not fit the tokenizer's class, and its files may have any values
            raise ModelError(_why_not_tokenized(texts, error)) from error
        return ids

    def _with_bos(self, ids: list[int]) -> list[int]:
        return with_prefix(ids, self.bos) if self.adds_bos else ids

    def rendered(self, request: Request) -> str:
        """The text of a request, with its tools and the variables that it gives the chat template."""
        variables = template_variables(request, self.template) if wanted(request) else {}
        if not request.tools or isinstance(request.context, str):
            return self.render(request.context, **variables)
        if not takes_tools(self.template):
            return self.render(describe_tools(request.context, request.tools), **variables)
        return self.render(request.context, tools=[tool.to_dict() for tool in request.tools], **variables)

    def render(self, context: Context, **variables: Any) -> str:
        """The text to tokenize: messages through the chat template, plain text only with `chat`. A last message of the
        assistant is the start of the answer, which stays open."""
        if isinstance(context, str):
            if not self.chat:
                return context
            context = (Message("user", context),)
        if not self.has_template:
            raise ModelError("this tokenizer has no chat template: leave out --apply_chat_template and use_chat_template")
        turns = [{"role": message.role, "content": self._content(message), **tool_fields(message)} for message in context]
        owner = self.tokenizer if self.processor is None else self.processor
        is_open = turns[-1]["role"] == "assistant"
        try:
            return str(
                owner.apply_chat_template(
                    turns,
                    tokenize=False,
                    add_generation_prompt=not is_open,
                    continue_final_message=is_open,
                    **variables,
                )
            )
        except Exception as error:  # a template is third-party code
            raise TemplateFailed(f"the chat template cannot render the messages: {describe(error)}") from error

    @property
    def has_template(self) -> bool:
        return bool(self.template)

    @property
    def template(self) -> str:
        return template_text((self.tokenizer if self.processor is None else self.processor).chat_template)

    def _content(self, message: Message) -> Any:
        if self.processor is None:
            return message.text
        return [{"type": "text", "text": part} if isinstance(part, str) else {"type": part.kind} for part in message.parts]

    def pairs(self, requests: Sequence[Request]) -> list[TokenPair]:
        """Contexts and continuations tokenized as one text, so that tokens at the boundary are those of real text."""
        with phase(TOKENIZING):
            texts = [move_spaces(self.rendered(request), request.continuation) for request in requests]
            heads: dict[int, list[int]] = {}  # with BOS; equal ones are one object
            pairs = []
            for (context, _), (head, tail, n_context) in zip(texts, self._pieces.encode_pairs(texts), strict=True):
                length = len(head) + len(tail)
                if head:
                    head = heads.setdefault(id(head), self._with_bos(head))
                else:
                    tail = self._with_bos(tail)
                n_context = n_context + len(head) + len(tail) - length if context else 0
                pairs.append(make_pair(tail, n_context, window=self.window, prefix=self.prefix, head=head))
            return pairs

    def scorable(self, requests: Sequence[Request]) -> tuple[list[Request], list[TokenPair], list[Completed]]:
        """The requests that can be scored, their pairs, and the others with their errors."""
        rendered, pairs, failed = self._each(requests, self.pairs)
        fitting, pairs, errors = self.fitting(rendered, pairs)
        return fitting, pairs, [*failed, *errors]

    def fitting(
        self, requests: Sequence[Request], pairs: Sequence[TokenPair]
    ) -> tuple[list[Request], list[TokenPair], list[Completed]]:
        """Requests whose continuation has tokens and fits the context, their pairs, and the others with their errors."""
        too_long = Response(error=f"the continuation is longer than the context of {self.window} tokens")
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

    def answerable(self, requests: Sequence[Request]) -> tuple[list[Prompt], list[Completed]]:
        """The prompts of requests that can be rendered, and the others with their errors."""
        _, prompts, errors = self._each(requests, self.prompts)
        return prompts, errors

    def _each(
        self, requests: Sequence[Request], tokenize: Callable[[Sequence[Request]], list[T]]
    ) -> tuple[Sequence[Request], list[T], list[Completed]]:
        """A request that the chat template cannot render is an error of its own."""
        try:
            return requests, tokenize(requests), []
        except TemplateFailed:
            rendered, errors = [], list[Completed]()
            for request in requests:
                try:
                    self.rendered(request)
                    rendered.append(request)
                except TemplateFailed as failed:
                    errors.append((request, Response(error=str(failed))))
            return rendered, tokenize(rendered), errors

    def count(self, requests: Sequence[Request]) -> list[int]:
        """How many tokens each request has, with its continuation and before truncation."""
        texts = [(self.rendered(request), request.continuation) for request in requests]
        encoded = self._pieces.encode_pairs(texts)
        return [len(head) + len(tail) + (self.adds_bos and (head or tail)[:1] != [self.bos]) for head, tail, _ in encoded]

    def room(self, request: Request) -> int:
        """How many tokens of a request fit the context, with its continuation. The rest is truncated, but not of documents:
        they are scored in several windows."""
        if request.kind == ROLLING:
            return sys.maxsize
        if request.kind == LOGLIKELIHOOD:
            return self.window + 1  # the last token is no input
        return max(0, self.window - int(request.options["max_gen_toks"]))

    def windows(self, request: Request) -> list[Row]:
        """A document as rows, one for each rolling window. Without BOS and EOS the first token is not scored."""
        ids = self.encode(request.text)  # a document is scored as it is, never as a chat message
        windows = rolling_windows(with_prefix(ids, self.prefix), self.window)
        return [Row(pair.ids[:-1], [Span(pair.n_context - 1, pair.continuation)], [request]) for pair in windows]

    def prompts(self, requests: Iterable[Request]) -> list[Prompt]:
        """Generation prompts, truncated on the left so that prompt and answer fit the window."""
        with phase(TOKENIZING):
            requests = list(requests)
            texts = [self.rendered(request) for request in requests]
            encoded = self.encode_all(texts)
            return [self._prompt(*prompt) for prompt in zip(requests, texts, encoded, strict=True)]

    def _prompt(self, request: Request, text: str, ids: list[int]) -> Prompt:
        max_new = int(request.options["max_gen_toks"])
        room = self.room(request)
        if room < 1:
            raise ModelError(
                f"an answer of {max_new} tokens leaves no room for a prompt in a context of {self.window} tokens: "
                "lower --max_tokens or raise max_context_length"
            )
        ids = ids or ([self.prefix] if self.prefix is not None else ids)
        cut = max(0, len(ids) - room)
        return Prompt(request, ids[cut:], cut, max_new, opens_reasoning(request, text))


def prompt_units(prompts: Sequence[Prompt]) -> list[Unit]:
    """Prompts sorted by shared prefix, for an engine's prefix cache; equal costs preserve the order."""
    ordered = sorted(prompts, key=lambda prompt: prompt.ids)
    return [Unit([prompt.request], 1, prompt) for prompt in ordered]


def _why_not_tokenized(texts: Sequence[str], error: Exception) -> str:
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as found:
            shown = text[max(0, found.start - 20) : found.end + 20]
            return f"a text has a lone surrogate, which no tokenizer takes: {shown!a}"
    return f"the tokenizer of this model cannot tokenize: {describe(error)}"
