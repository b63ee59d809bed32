"""A deterministic model for lm-eval and the same for mill: what it answers depends on the request's text alone."""

from __future__ import annotations

import hashlib
from typing import Any

from lm_eval.api.model import LM

from mill.api.model import MillModel, ModelCapabilities
from mill.api.registry import register_model
from mill.api.request import Request
from mill.api.response import Response

TEXTS = ("True", "the answer is (A).", "So the answer is No.", "#### 18", "B", "7", "yes", "Paris", "    return 1\n", "(B)")


def number(*parts: str) -> int:
    text = "\x00".join(parts).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=6).digest(), "big")


def score(context: str, continuation: str) -> tuple[float, bool]:
    drawn = number("score", context, continuation)
    return -(drawn % 10_007) / 97, drawn % 3 == 0


def document_score(text: str) -> float:
    return -len(text) * (1 + number("document", text) % 1000 / 1000)


def written(context: str) -> str:
    drawn = number("text", context)
    return f"{TEXTS[drawn % len(TEXTS)]} {TEXTS[drawn // 31 % len(TEXTS)]}"


class HashLM(LM):
    """The deterministic model for lm-eval."""

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        return [score(*request.args[:2]) for request in requests]

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        return [document_score(request.args[0]) for request in requests]

    def generate_until(self, requests: list[Any]) -> list[str]:
        return [written(request.args[0]) for request in requests]


@register_model("hash-model")
class HashModel(MillModel):
    """The same for mill."""

    def __init__(self, path: str = "hash", batch_size: int = 4096) -> None:
        self.path, self.batch_size = path, batch_size
        self.capabilities = ModelCapabilities(supports_logprobs=True, supports_chat_template=True)

    @property
    def model_name(self) -> str:
        return self.path

    def _loglikelihood_batch(self, batch: list[Request]) -> list[Any]:
        return [score(request.text, request.continuation) for request in batch]

    def _loglikelihood_rolling_single(self, request: Request) -> float:
        return document_score(request.text)

    def _generate_batch(self, batch: list[Request], gen_kwargs: dict[str, Any]) -> list[Response]:
        return [Response(text=written(request.text)) for request in batch]
