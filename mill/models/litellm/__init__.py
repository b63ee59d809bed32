"""What LiteLLM serves: hosted models of many providers, reached through its library."""

from mill.models.litellm.model import LiteLLMModel

__all__ = ["LiteLLMModel"]
