"""A small language model with optional faults, and tasks with data of their own, for --task_paths."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from mill.api.model import MillModel, ModelCapabilities
from mill.api.registry import register_model, register_task
from mill.api.request import GENERATE, Request
from mill.api.response import Response, Token
from mill.api.task import RenderSettings, Sample, Task, TaskType, Value

VOCABULARY = 128  # characters
_LOGITS = np.random.default_rng(7).normal(size=(VOCABULARY, VOCABULARY)) * 2
SPOILT = (3, 7)  # positions of every scored text


@register_model("planted")
class PlantedModel(MillModel):
    """The next character depends on the last one. `fault` selects a fault."""

    def __init__(self, path: str, fault: str = "") -> None:
        self.path, self.fault = path, fault
        self.capabilities = ModelCapabilities(supports_logprobs=True, supports_chat_template=False, top_logprobs=None)

    @property
    def model_name(self) -> str:
        return self.path

    def _logprobs(self, text: str) -> np.ndarray:
        logits = _LOGITS[ord(text[-1]) % VOCABULARY].copy()
        if self.fault == "wrong logit":
            logits[ord("e")] += 6.0
        return np.asarray(logits - np.log(np.exp(logits).sum()))

    def _generate_batch(self, batch: list[Request], gen_kwargs: dict[str, Any]) -> list[Response]:
        return [self._generate(request.text, int(gen_kwargs["max_gen_toks"])) for request in batch]

    def _generate(self, prompt: str, count: int) -> Response:
        if self.fault == "second fails" and "planted_second" in prompt:
            return Response(error="out of memory")
        text, tokens = "", []
        for _ in range(count):
            logprobs = self._logprobs(prompt + text)
            best, second = (int(token) for token in np.argsort(-logprobs)[:2])
            top = ((best, float(logprobs[best])), (second, float(logprobs[second])))
            tokens.append(Token(best, chr(best), float(logprobs[best]), top))
            text += chr(best)
        return Response(text=text, tokens=tuple(tokens), finish_reason="length", output_tokens=count)

    def _loglikelihood_batch(self, batch: list[Request]) -> list[Response]:
        return [self._score(request.text, request.continuation) for request in batch]

    def _score(self, context: str, continuation: str) -> Response:
        rows = np.array([self._logprobs(context + continuation[:n]) for n in range(len(continuation))])
        ids = [ord(char) % VOCABULARY for char in continuation]
        scores = [float(row[token]) for row, token in zip(rows, ids, strict=True)]
        for position in SPOILT if len(ids) > max(SPOILT) else ():
            if self.fault == "nan":
                rows[position] = np.nan
            if self.fault == "inf":
                rows[position, ids[position]] = scores[position] = -np.inf
        tokens = tuple(Token(token, chr(token), score) for token, score in zip(ids, scores, strict=True))
        return Response(score=float(sum(scores)), is_greedy=False, tokens=tokens, distribution=rows, output_tokens=len(ids))


@register_task("planted_first", "planted_second")
class DataTask(Task):
    """Every complete answer is right. The first PLANTED_OTHER_ROWS rows have different data with the same ids."""

    task_type = TaskType.GENERATIVE_QA
    metrics = {"exact_match": "mean"}

    def samples(self) -> Sequence[Sample]:
        other = int(os.environ.get("PLANTED_OTHER_ROWS", 0))
        return [Sample(str(n), {"question": f"{self.name} {n}{' new' * (n < other)}"}) for n in range(40)]

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        return [Request(GENERATE, sample.doc["question"], options=settings.options(max_gen_toks=4))]

    def target(self, sample: Sample) -> str:
        return "right"

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        return {"exact_match": float(len(responses[0].text or "") == 4)}
