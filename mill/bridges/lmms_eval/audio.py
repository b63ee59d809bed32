"""Audio of datasets without torchcodec, the only package with which `datasets` decodes it: with the extra `media`."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Mapping
from typing import Any

from mill.api.message import AUDIO, Media
from mill.models.media.decode import load_audio


def decode_with_soundfile() -> None:
    """From now on, where torchcodec is not installed, audio is a dictionary as in earlier versions of `datasets`."""
    if importlib.util.find_spec("torchcodec") is None and importlib.util.find_spec("soundfile") is not None:
        from datasets import Audio

        Audio.decode_example = _decoded


def _decoded(feature: Any, value: Any, token_per_repo_id: Any = None) -> Any:
    if not isinstance(value, Mapping) or "array" in value:
        return value
    import soundfile

    encoded, path = value.get("bytes"), value.get("path")
    rate = feature.sampling_rate or soundfile.info(io.BytesIO(encoded) if encoded is not None else path).samplerate
    samples = load_audio(Media(AUDIO, encoded if encoded is not None else path), rate)
    return {"path": path, "array": samples, "sampling_rate": int(rate)}
