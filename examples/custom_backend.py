"""A custom backend: a character n-gram model, estimated from a text file.

    mill eval "custom_backend.py[path=corpus.txt,order=8]" capitals --task_paths custom_task.py
    mill eval "custom_backend.py[path=corpus.txt]" notes.txt
    mill conform "custom_backend.py[path=corpus.txt]"

The base class batches, retries and records; a backend implements the hooks that it can serve.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from functools import cached_property
from pathlib import Path
from typing import Any

from mill.api.model import MillModel, ModelCapabilities
from mill.api.registry import register_model
from mill.api.request import Request
from mill.api.response import Response

Counts = dict[str, Counter[str]]
SMOOTHING = 0.01


@register_model("ngram")
class NGramModel(MillModel):
    def __init__(self, path: str, order: int = 5, batch_size: int = 8) -> None:
        self.path, self.order, self.batch_size = path, order, batch_size
        self.capabilities = ModelCapabilities(supports_logprobs=True)

    @property
    def model_name(self) -> str:
        return f"{self.order}-gram of {Path(self.path).name}"

    @cached_property
    def _counts(self) -> Counts:
        """Counted at first use, so that a task that the model cannot serve is refused before."""
        text, counts = Path(self.path).read_text(), defaultdict[str, Counter[str]](Counter)
        for end, char in enumerate(text):
            counts[text[max(0, end - self.order + 1) : end]][char] += 1
        return counts

    def _following(self, text: str) -> Counter[str]:
        return self._counts.get(text[max(0, len(text) - self.order + 1) :], Counter())

    def _score(self, context: str, continuation: str) -> tuple[float, bool]:
        """The log-probability, smoothed by a small count for each of 256 characters, and if greedy decoding gives it."""
        logprob, greedy = 0.0, True
        for char in continuation:
            following = self._following(context)
            logprob += math.log((following[char] + SMOOTHING) / (following.total() + 256 * SMOOTHING))
            greedy = greedy and following[char] > 0 and char == following.most_common(1)[0][0]
            context += char
        return logprob, greedy

    def _loglikelihood_batch(self, batch: list[Request]) -> list[tuple[float, bool]]:
        return [self._score(request.text, request.continuation or "") for request in batch]

    def _loglikelihood_rolling_single(self, request: Request) -> float:
        return self._score("", request.text)[0]

    def _generate_batch(self, batch: list[Request], gen_kwargs: dict[str, Any]) -> list[Response]:
        return [self._generate(request, **gen_kwargs) for request in batch]

    def _generate(
        self, request: Request, max_gen_toks: int, until: tuple[str, ...], temperature: float = 0.0, **_: Any
    ) -> Response:
        """Seeded by the request's key, which differs between the draws of one prompt."""
        text, rng = "", random.Random(request.key)
        while len(text) < max_gen_toks and (following := self._following(request.text + text)):
            if temperature == 0:
                text += following.most_common(1)[0][0]
            else:
                weights = [count ** (1 / temperature) for count in following.values()]
                text += rng.choices(list(following), weights)[0]
            if stop := next((stop for stop in until if text.endswith(stop)), None):
                return Response(text=text.removesuffix(stop), finish_reason="stop", output_tokens=len(text))
        finish_reason = "length" if len(text) == max_gen_toks else "stop"
        return Response(text=text, finish_reason=finish_reason, output_tokens=len(text))
