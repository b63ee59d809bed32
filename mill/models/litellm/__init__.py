"""The `litellm` backend: hosted models of many providers."""

from mill.models.litellm.model import LiteLLMModel

__all__ = ["LiteLLMModel"]
