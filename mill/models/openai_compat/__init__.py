"""The `openai-compat` backend: any server with OpenAI's API, such as vLLM, SGLang, Ollama or llama-server."""

from mill.models.openai_compat.model import OpenAICompatModel

__all__ = ["OpenAICompatModel"]
