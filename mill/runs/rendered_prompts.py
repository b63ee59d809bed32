"""The prompts of samples as the model got them, after its chat template: the files of samples show them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Sequence

from mill.api.background import Background
from mill.api.model import MillModel, RendersPrompts
from mill.api.request import Request
from mill.execute.sample_state import SampleState
from mill.runs.samples import prompt_requests


class RenderedPrompts:
    """Those of one model. They are rendered before it is closed: some backends keep their tokenizer no longer."""

    def __init__(self, model: MillModel) -> None:
        self._model = model
        self._known: dict[tuple[str, str | int], list[str]] = {}
        self._rendering: Background[None] | None = None

    def start(self, states: Sequence[SampleState]) -> None:
        """Render in a thread, while the model computes, those of samples that are no dialogs, which grow."""
        self._rendering = Background(lambda: self._render(state for state in states if not state.rounds))

    def finish(self, states: Iterable[SampleState]) -> None:
        """Render what is left, after the last request."""
        if self._rendering is not None:
            self._rendering.result()
        self._render(state for state in states if _name(state) not in self._known)

    def of(self, state: SampleState) -> list[str]:
        return self._known.get(_name(state), [])

    def _render(self, states: Iterable[SampleState]) -> None:
        for state in states:
            with contextlib.suppress(Exception):  # the samples then show the prompt as it was before the template
                self._known[_name(state)] = [self._rendered(request) for request in prompt_requests(state)]

    def _rendered(self, request: Request) -> str:
        """Where the model does not say, its messages as JSON."""
        if isinstance(self._model, RendersPrompts):
            return self._model.rendered_prompt(request)
        if isinstance(request.context, str):
            return request.context
        return json.dumps([message.to_json() for message in request.context], ensure_ascii=False)


def _name(state: SampleState) -> tuple[str, str | int]:
    return state.task.name, state.sample.id
