"""One answer out of the events of a stream."""

from __future__ import annotations

from typing import Any

from mill.models.http import Failure
from mill.models.http.values import shaped
from mill.models.openai_compat.finish import read_finish
from mill.models.openai_compat.schema import ChatMessage, Choice, Completion, first_choice


class StreamedAnswer:
    """Collects texts, the finish_reason and the counts. Only an answer with a finish_reason is whole."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._finish: str | None = None
        self._usage: Any = None
        self._model: Any = None

    def feed(self, event: Any) -> bool:
        """Whether the event has text, of the answer or of the reasoning before it."""
        chunk = shaped(event, Completion, "an event of the stream")
        self._usage, self._model = chunk.usage or self._usage, chunk.model or self._model
        if not chunk.choices:
            return False
        choice = first_choice(chunk.choices)
        self._finish = read_finish(choice) or self._finish
        text, reasoning = _texts(choice)
        self._texts.append(text)
        return bool(text or reasoning)

    def whole(self) -> dict[str, Any]:
        if self._finish is None:
            raise Failure("cut", "the server ended the stream before the answer was complete: it gave no finish_reason")
        choice = {"index": 0, "text": "".join(self._texts), "finish_reason": self._finish}
        return {"choices": [choice], "usage": self._usage, "model": self._model}


def _texts(choice: Choice) -> tuple[str, str]:
    said = choice.delta or choice.message or ChatMessage()
    reasoning = said.reasoning_content or said.reasoning
    return choice.text or said.content or "", reasoning if isinstance(reasoning, str) else ""
