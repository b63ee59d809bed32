"""A model that only computes: every request is a loop of hashing in one thread. For `workers.py`."""

from __future__ import annotations

import hashlib

from mill.api.model import MillModel, ModelCapabilities
from mill.api.registry import register_model
from mill.api.request import Request


@register_model("busy")
class BusyModel(MillModel):
    capabilities = ModelCapabilities(supports_logprobs=True)
    batch_size = 4

    @property
    def model_name(self) -> str:
        return "busy"

    def _loglikelihood_batch(self, batch: list[Request]) -> list[tuple[float, bool]]:
        return [(-float(self._work(request)), False) for request in batch]

    def _work(self, request: Request) -> int:
        digest = request.key.encode()
        for _ in range(int(request.text.rpartition(" ")[2])):
            digest = hashlib.sha256(digest).digest()
        return digest[0]
