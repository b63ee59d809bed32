"""The HF transformers backend: loading, tokens, scoring and decoding, one idea a file. torch loads at first use."""

from mill.models.hf.model import TransformersModel

__all__ = ["TransformersModel"]
