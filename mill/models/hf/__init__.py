"""The HF transformers backend: loading, scoring and decoding. torch is imported at first use."""
