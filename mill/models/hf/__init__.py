"""The HF transformers backend: loading, scoring and decoding. torch is imported at first use."""

from mill.models.hf.model import TransformersModel

__all__ = ["TransformersModel"]
