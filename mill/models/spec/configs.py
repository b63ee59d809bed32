"""Packaged configs: Python files below `mill/models/configs`, each with a dict `model`, usable by their names alone."""

from __future__ import annotations

import functools
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "configs"


@functools.cache
def packaged_configs() -> dict[str, Path]:
    """The file of every packaged config, by name."""
    files = sorted(file for file in FOLDER.rglob("*.py") if not file.name.startswith("_"))
    return {file.stem: file for file in files}


def config_file(path: str | Path) -> Path:
    """The file of a config, given by path or by name.

    `mill/models/configs/...` means the packaged file in any folder, unless the current one has its own.
    """
    path = Path(path)
    if str(path) in packaged_configs():
        return packaged_configs()[str(path)]
    packaged = FOLDER.parents[2] / path
    return packaged if path.parts[:3] == ("mill", "models", "configs") and not path.exists() else path
