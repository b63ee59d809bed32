"""The `vllm` backend: vLLM in process."""

from mill.models.vllm.model import VLLMModel

__all__ = ["VLLMModel"]
