"""The `llama-cpp` backend: a llama-server, through its own /completion endpoint and token ids."""

from mill.models.llama_cpp.model import LlamaCppModel

__all__ = ["LlamaCppModel"]
