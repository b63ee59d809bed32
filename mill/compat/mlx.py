"""mlx-lm: the folder of a model, and configs that transformers 5 wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mill.api.errors import ModelError
from mill.support.terminal import warn


def model_folder(path: str, revision: str | None) -> Path:
    """The folder of a model, downloaded from the hub if it is not local."""
    from mlx_lm.utils import _download

    return Path(_download(path, revision=revision))


def rope_overrides(config: dict[str, Any]) -> dict[str, Any]:
    """Config fields to pass to mlx-lm for a model that transformers 5 saved.

    transformers 5 writes the rope settings to `rope_parameters`. mlx-lm does not read that field: it would use its default
    base and return wrong results without an error.
    """
    rope = config.get("rope_parameters")
    if not isinstance(rope, dict) or "rope_theta" in config:
        return {}
    if "rope_theta" not in rope:
        raise ModelError("mlx-lm would misread this model's rope settings: rope_parameters has no single rope_theta")
    overrides: dict[str, Any] = {"rope_theta": rope["rope_theta"]}
    if rope.get("rope_type", "default") != "default":
        overrides["rope_scaling"] = {name: value for name, value in rope.items() if name != "rope_theta"}
    warn(f"mlx-lm does not read rope_parameters in config.json; mill passes {', '.join(overrides)} to it")
    return overrides
