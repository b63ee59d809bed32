"""The `vllm-mlx` backend: an OpenAI-compatible server whose health check also names the loaded model."""

from __future__ import annotations

from typing import Any

import msgspec

from mill.api.errors import ModelError
from mill.models.http.failures import Failure
from mill.models.http.probes import same_model
from mill.models.openai_compat.model import OpenAICompatModel
from mill.support.terminal import one_line
from mill.support.validate import convert

DEFAULT_URL = "http://127.0.0.1:8000"


class Health(msgspec.Struct):
    """The response of /health."""

    model_loaded: bool | None = None
    model_name: str | None = None


class VllmMlxModel(OpenAICompatModel):
    start_command = "vllm-mlx serve MODEL"

    def __init__(self, model: str = "", base_url: str = DEFAULT_URL, **arguments: Any) -> None:
        super().__init__(model, base_url, **arguments)

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "backend": "vllm-mlx"}

    def _identify(self) -> None:
        body = self.client.probe("GET", "/health").body or {}
        health: Health = convert(body, Health, f"{self.base_url}/health", ModelError)
        if health.model_loaded is False:
            raise Failure("http", "the server has loaded no model yet", status=503)
        if self.model and health.model_name and not same_model(health.model_name, self.model):
            raise ModelError(f"{self.base_url} has loaded {one_line(health.model_name)}, not {self.model}")
        super()._identify()
