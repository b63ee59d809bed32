"""Texts that two engines both score, token by token, so that their distributions can be compared at every position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mill.api.message import Context
from mill.api.request import LOGLIKELIHOOD, Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample, Task, TaskType, Value


@dataclass(frozen=True)
class ForcedText:
    """A context as it went to the model, and what is scored after it; `plain` where a dialog became plain text."""

    id: str
    context: Context
    continuation: str
    plain: bool = False


class ForcedTask(Task):
    """`top_logprobs` is the number of most likely tokens at each position, or "all" for the whole vocabulary."""

    task_type = TaskType.PERPLEXITY
    kind = LOGLIKELIHOOD
    metrics = {"token_perplexity": "perplexity"}

    def __init__(self, name: str, texts: Sequence[ForcedText], top_logprobs: int | str) -> None:
        super().__init__(name)
        self.texts, self.top_logprobs = {text.id: text for text in texts}, top_logprobs

    def samples(self) -> Sequence[Sample]:
        return [Sample(text.id, {"continuation": text.continuation}) for text in self.texts.values()]

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        text = self.texts[sample.id]
        options = {"logprobs": self.top_logprobs}
        return [Request(LOGLIKELIHOOD, context=text.context, continuation=text.continuation, options=options)]

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        score = responses[0].score
        return {"token_perplexity": (float("nan") if score is None else score, float(responses[0].output_tokens or 1))}
