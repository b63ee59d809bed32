"""Instances of lm-eval as requests of mill, and the chat template that lm-eval gets: one that returns the messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mill.api.errors import DataError
from mill.api.message import AUDIO, IMAGE, Context, Media, Message
from mill.api.request import GENERATE, LOGLIKELIHOOD, ROLLING, Request

_MARK = "\u2061\u2062"  # invisible; starts the text of every ChatPrompt, so that one that lm-eval changed is noticed
_PLACEHOLDERS = {IMAGE: "<image>", AUDIO: "<audio>"}
_MEDIA_ARGUMENTS = {"visual": IMAGE, "audio": AUDIO}


class ChatPrompt(str):
    """What lm-eval takes for the rendered text of a chat: a text that carries the messages."""

    messages: tuple[Message, ...]

    def __new__(cls, turns: Sequence[Mapping[str, Any]]) -> ChatPrompt:
        prompt = super().__new__(cls, _MARK + "\n".join(f"<{turn['role']}> {turn['content']}" for turn in turns))
        prompt.messages = tuple(Message(str(turn["role"]), str(turn["content"])) for turn in turns)
        return prompt


def return_messages(turns: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> ChatPrompt:
    """A chat template for lm-eval. Messages that end with the assistant's are continued by the model."""
    return ChatPrompt(turns)


def context_of(prompt: str, media: Mapping[str, Any] | None = None) -> Context:
    """The prompt of an instance: messages, or a text. With media it is always a dialog."""
    if not isinstance(prompt, ChatPrompt) and _MARK in prompt:
        raise DataError("its prompts are changed after the chat template: leave out --apply_chat_template")
    if not media:
        return prompt.messages if isinstance(prompt, ChatPrompt) else str(prompt)
    messages = prompt.messages if isinstance(prompt, ChatPrompt) else (Message("user", str(prompt)),)
    waiting = {kind: [Media(kind, one) for one in media.get(name) or ()] for name, kind in _MEDIA_ARGUMENTS.items()}
    placed = tuple(Message(message.role, _placed(message.text, waiting)) for message in messages)
    if any(waiting.values()):
        raise DataError("a prompt has more media than placeholders")
    return placed


def _placed(text: str, waiting: dict[str, list[Media]]) -> str | tuple[str | Media, ...]:
    """A text with the next media in place of its placeholders, which are used up."""
    parts: list[str | Media] = [text]
    for kind, placeholder in _PLACEHOLDERS.items():
        split: list[str | Media] = []
        for part in parts:
            if isinstance(part, Media):
                split.append(part)
                continue
            for number, piece in enumerate(part.split(placeholder)):
                if number:
                    split.append(waiting[kind].pop(0) if waiting[kind] else placeholder)
                split.append(piece)
        parts = split
    found = tuple(part for part in parts if part != "")
    return found if any(isinstance(part, Media) for part in found) else text


# Options that change nothing at these values.
_WITHOUT_EFFECT = {"num_beams": 1, "num_return_sequences": 1, "use_cache": True, "early_stopping": False}


def as_request(instance: Any, decoding: Callable[..., dict[str, Any]], *, repeats: int = 1, draw: int = 0) -> Request:
    """`decoding` turns the decoding options of the instance into those of the request."""
    kind, arguments = instance.request_type, instance.args
    if kind == ROLLING:
        return Request(ROLLING, str(arguments[0]), repeats=repeats)
    context = context_of(arguments[0], arguments[2] if len(arguments) > 2 else None)
    if kind == LOGLIKELIHOOD:
        return Request(LOGLIKELIHOOD, context, str(arguments[1]), repeats=repeats)
    if kind != GENERATE:
        raise DataError(f"lm-eval sends {kind} requests here, which mill does not have")
    return Request(GENERATE, context, options=decoding(**_effective(arguments[1])), repeats=repeats, draw=draw)


def _effective(given: Mapping[str, Any]) -> dict[str, Any]:
    """Decoding options without those that change nothing, such as an empty stop string."""
    options = {name: value for name, value in given.items() if _WITHOUT_EFFECT.get(name, _WITHOUT_EFFECT) != value}
    until = options.get("until")
    if until is not None:
        options["until"] = [stop for stop in ([until] if isinstance(until, str) else until) if stop]
    return options
