"""The `openai-compat` backend: any server with the OpenAI API, such as vLLM, SGLang, Ollama or llama-server."""

from mill.models.openai_compat.model import OpenAICompatModel

__all__ = ["OpenAICompatModel"]
