"""Prompts of lm-eval as mill's: a chat template is applied by the model, so lm-eval gets one that keeps the messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mill.api.message import Context, Message


class ChatPrompt(str):
    """What lm-eval takes for the rendered text of a chat: the messages, with their text for display."""

    messages: tuple[Message, ...]

    def __new__(cls, turns: Sequence[Mapping[str, Any]]) -> ChatPrompt:
        prompt = super().__new__(cls, "\n".join(f"<{turn['role']}> {turn['content']}" for turn in turns))
        prompt.messages = tuple(Message(str(turn["role"]), str(turn["content"])) for turn in turns)
        return prompt


def keep_messages(turns: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> ChatPrompt:
    """A chat template for lm-eval. Messages that end with the assistant's are continued by the model."""
    return ChatPrompt(turns)


def context_of(prompt: str) -> Context:
    return prompt.messages if isinstance(prompt, ChatPrompt) else str(prompt)
