"""Generated answers: tokens as text, reasoning split from the answer, and stop strings that apply to the answer alone."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from mill.api.request import ReasoningTags, Request, tags_of
from mill.api.response import Response, Token
from mill.models.tokens.tool_calls import MARKERS, split_tool_calls

if TYPE_CHECKING:
    import torch

    from mill.models.tokens.tokenizer import Prompt


def cut_at_stops(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """The text before the stop strings, and whether there was one. Servers take few stops, and some ignore them.

    The text is cut at one after the other, as lm-eval does: of two that overlap, the one that is listed first counts.
    """
    stopped = False
    for stop in filter(None, stops):
        text, found, _ = text.partition(stop)
        stopped = stopped or bool(found)
    return text, stopped


def split_stops(tokenizer: Any, until: Sequence[str]) -> tuple[list[str], list[int]]:
    """Stop strings, and the ids of those that are special tokens: decoding removes them from the text."""
    specials = set(tokenizer.all_special_tokens) | set(getattr(tokenizer, "added_tokens_encoder", {}))
    ids = [tokenizer.convert_tokens_to_ids(stop) for stop in until if stop in specials]
    return [stop for stop in until if stop and stop not in specials], ids


def opens_reasoning(request: Request, prompt: str) -> bool:
    """Whether a rendered prompt ends inside of reasoning."""
    tags = tags_of(request)
    return tags is not None and tags.opened_by(prompt)


def read_text(
    request: Request, text: str, stops: Sequence[str], *, finish: str | None, opened: bool | None = None, **fields: Any
) -> Response:
    """A generated text as a response: the reasoning, the answer before its first stop string, and the calls in it. `opened`
    is whether the prompt ends inside of reasoning; None where it is not known."""
    tags = tags_of(request)
    reasoning = None
    if tags is not None:
        reasoning, text = tags.split(text, opened=opened)
    text, stopped = cut_at_stops(text, stops)
    text, calls = split_tool_calls(text) if request.tools else (text, ())
    reason = "stop" if stopped else finish
    return Response(text=text, reasoning=reasoning, tool_calls=calls, finish_reason=reason, **fields)


def stopped_too_early(request: Request, response: Response) -> bool:
    """Whether a stop string may have ended the reasoning, where an engine applies stop strings to all of the text."""
    return bool(request.options["until"]) and response.truncated_reasoning and response.finish_reason == "stop"


def marks_of(request: Request) -> tuple[str, ...]:
    """What marks the parts of a generated text: the tags of the reasoning and, with tools, the marks of calls."""
    tags = tags_of(request)
    return ((tags.start, tags.end) if tags else ()) + (MARKERS if request.tools else ())


def special_marks(tokenizer: Any, marks: Sequence[str]) -> bool:
    """Whether decoding would remove some of the marks as special tokens."""
    return any(token in mark for token in tokenizer.all_special_tokens for mark in marks)


def decoded_text(tokenizer: Any, ids: Sequence[int], marks: Sequence[str]) -> str:
    """Generated ids as text, without special tokens that are not among the marks."""
    if not special_marks(tokenizer, marks):
        return str(tokenizer.decode(ids, skip_special_tokens=True))
    text = str(tokenizer.decode(ids, skip_special_tokens=False))
    pieces = re.split(f"({'|'.join(map(re.escape, marks))})", text)
    return "".join(piece if piece in marks else _without(piece, tokenizer.all_special_tokens) for piece in pieces)


def _without(text: str, tokens: Sequence[str]) -> str:
    for token in tokens:
        text = text.replace(token, "")
    return text


def reasoning_tokens(tokenizer: Any, ids: Sequence[int], tags: ReasoningTags) -> int:
    """How many of the ids belong to the reasoning, its tags included; all of them where it has no end."""

    def ended(last: int) -> bool:
        return tags.end in decoded_text(tokenizer, ids[: last + 1], (tags.start, tags.end))

    return min(len(ids), bisect_left(range(len(ids)), True, key=ended) + 1)


def with_reasoning_tokens(tokenizer: Any, request: Request, response: Response, ids: Sequence[int]) -> Response:
    tags = tags_of(request)
    if tags is None or response.reasoning is None:
        return response
    return replace(response, reasoning_tokens=reasoning_tokens(tokenizer, ids, tags))


@lru_cache(maxsize=64)
def ending_tokens(tokenizer: Any, stops: tuple[str, ...]) -> Callable[[int], bool]:
    """Whether a token may complete a stop string: its text has the last character of one. Most tokens have none, and
    decoding the end of every answer after every token would take longer than a step of the model."""
    last = {stop[-1] for stop in stops if stop}
    # A tokenizer may drop white space of a token that is decoded alone, and a part of a character has no text.
    certain = all(character.isascii() and not character.isspace() for character in last)

    @cache
    def may_end(token: int) -> bool:
        text = str(tokenizer.decode([token])) if certain else ""
        return not text or any(character in text for character in last)

    return may_end


class StopDetector:
    """Whether a growing answer contains a stop string, token by token. The reasoning before the answer may contain any."""

    def __init__(self, tokenizer: Any, stops: Sequence[str], tags: ReasoningTags | None, *, opened: bool) -> None:
        self.tokenizer, self.stops, self.tags, self.opened = tokenizer, stops, tags, opened
        self._may_end = ending_tokens(tokenizer, tuple(stops))
        self._reasons: bool | None = None if tags is not None else False  # None until the first characters are there
        self._start = 0  # of the answer
        # A token may be less than a character (bytes of one), so the tail that is decoded is counted in bytes.
        self._tail = max((len(text.encode()) for text in (*stops, tags.end if tags else "")), default=0) + 4

    def found(self, generated: Sequence[int]) -> bool:
        """Whether the last of the generated tokens completes a stop string of the answer."""
        if not self.stops:
            return False
        if self._reasons is None:
            self._reasons = self._begins_with_reasoning(generated)
        if self._reasons is None:
            return False
        if not self._reasons and not self._may_end(generated[-1]):
            return False
        text = str(self.tokenizer.decode(generated[max(self._start, len(generated) - self._tail) :]))
        if self._reasons and self.tags is not None:
            if self.tags.end not in text:
                return False
            self._reasons, self._start = False, len(generated)
            text = text.partition(self.tags.end)[2]
        return any(stop in text for stop in self.stops)

    def _begins_with_reasoning(self, generated: Sequence[int]) -> bool | None:
        if self.tags is None or self.opened:
            return self.opened
        text = str(self.tokenizer.decode(generated)).lstrip()
        if text.startswith(self.tags.start):
            return True
        return None if self.tags.start.startswith(text) and len(generated) < self._tail else False


TokenLogprobs = tuple[float, tuple[tuple[int, float], ...]]
"""The log-probability of a generated token, and the `top_logprobs` at its position."""


def decoded_response(
    tokenizer: Any,
    prompt: Prompt,
    ids: list[int],
    end_ids: list[int],
    stops: Sequence[str],
    logprobs: list[TokenLogprobs] | None,
) -> Response:
    ends = [index for index, token in enumerate(ids) if token in end_ids]
    answer = ids[: ends[0]] if ends else ids
    request = prompt.request
    response = read_text(
        request,
        decoded_text(tokenizer, answer, marks_of(request)),
        stops,
        opened=prompt.opened,
        # A stop string may be part of a special token's name, which the text does not have.
        finish="stop" if ends or len(ids) < prompt.max_new_tokens else "length",
        tokens=None if logprobs is None else as_tokens(tokenizer, answer, logprobs),
        prompt_tokens=prompt.length,
        output_tokens=len(answer) + bool(ends),
        truncated_tokens=prompt.truncated,
    )
    return with_reasoning_tokens(tokenizer, request, response, answer)


def as_tokens(tokenizer: Any, ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> tuple[Token, ...]:
    """Ids with their log-probabilities; there may be one more of those, for the token that ended the answer."""
    texts = tokenizer.batch_decode([[token] for token in ids])
    tokens = zip(ids, texts, logprobs, strict=False)
    return tuple(Token(token, text, logprob, top) for token, text, (logprob, top) in tokens)


def token_logprobs(logprobs: torch.Tensor, token: int, count: int) -> TokenLogprobs:
    """The log-probability of the chosen token and the top_logprobs, from a distribution."""
    best = logprobs.topk(min(count, len(logprobs)))
    return float(logprobs[token]), tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
