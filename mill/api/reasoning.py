"""Reasoning before an answer: text between two tags, which is shown and counted, and never scored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mill.api.errors import SpecError
from mill.api.request import Request

EFFORTS = ("none", "low", "medium", "high")
OFF = "none"


@dataclass(frozen=True)
class ReasoningTags:
    """What a model writes before and after its reasoning."""

    start: str = "<think>"
    end: str = "</think>"

    def split(self, text: str, *, opened: bool | None = None) -> tuple[str | None, str]:
        """The reasoning, None where there is none, and the answer after it.

        Reasoning starts with the text, or before it where the prompt `opened` it. Where the prompt is not known (None), an
        end without a start shows that it did. Without an end all of the text is reasoning, and the answer is empty.
        """
        started = text.lstrip().startswith(self.start)
        before, ended, after = text.partition(self.end)
        if started:
            before = before.lstrip()[len(self.start) :]
        elif opened is False or (opened is None and (not ended or self.start in before)):
            return None, text
        return before.strip(), after.lstrip()

    def opened_by(self, prompt: str) -> bool:
        """Whether a prompt ends inside of reasoning, as chat templates of some models do."""
        return prompt.rstrip().endswith(self.start)


DEFAULT_TAGS = ReasoningTags()


def tags_of(request: Request) -> ReasoningTags | None:
    """The tags of the reasoning; None where the user wants it in the answer."""
    given = request.options.get("reasoning_tags")
    return DEFAULT_TAGS if given is None else ReasoningTags(*given) if given else None


def read_tags(given: Any) -> tuple[str, ...]:
    """The tags of an option: `<think>,</think>` or a list of two; `none` or an empty list means that nothing is split."""
    if isinstance(given, str):
        given = [] if given.strip().lower() == OFF else [part.strip() for part in given.split(",")]
    if not isinstance(given, (list, tuple)) or not all(isinstance(part, str) and part for part in given):
        raise SpecError(f"reasoning_tags={str(given)[:60]}: give two texts such as <think>,</think>, or none")
    if len(given) not in (0, 2) or len(set(given)) < len(given):
        raise SpecError(f"reasoning_tags={','.join(given)[:60]}: give two different texts, or none")
    return tuple(given)
