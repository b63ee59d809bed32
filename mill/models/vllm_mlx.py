"""The `vllm-mlx` backend: an OpenAI-compatible server whose health check also tells which model it has loaded."""

from __future__ import annotations

from typing import Any

from mill.api.errors import ModelError
from mill.models.http import Failure
from mill.models.openai_compat import OpenAICompatModel

DEFAULT_URL = "http://127.0.0.1:8000"


class VllmMlxModel(OpenAICompatModel):
    def __init__(self, model: str = "", base_url: str = DEFAULT_URL, **arguments: Any) -> None:
        super().__init__(model, base_url, **arguments)

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "backend": "vllm-mlx"}

    def _recognize(self) -> None:
        health = self.client.probe("GET", "/health").body or {}
        if health.get("model_loaded") is False:
            raise Failure("http", "the server has loaded no model yet", status=503)
        loaded = health.get("model_name")
        if self.model and loaded and loaded != self.model:
            raise ModelError(f"{self.base_url} has loaded {loaded}, not {self.model}")
        super()._recognize()
