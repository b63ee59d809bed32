"""Packaged configs: Python files below `mill/models/configs`, each with a dict `model`, usable by their names alone."""

from __future__ import annotations

import functools
from pathlib import Path

from mill.support.terminal import warn

FOLDER = Path(__file__).parent.parent / "configs"


@functools.cache
def packaged_configs() -> dict[str, Path]:
    """The file of every packaged config, by name."""
    files = sorted(file for file in FOLDER.rglob("*.py") if not file.name.startswith("_"))
    return {file.stem: file for file in files}


def packaged_path(name: str) -> str:
    """The path of a packaged config as `config_file` takes it in any folder: mill/models/configs/..."""
    return packaged_configs()[name].relative_to(FOLDER.parents[2]).as_posix()


def config_file(path: str | Path) -> Path:
    """The file of a config, given by path or by name.

    `mill/models/configs/...` means the packaged file in any folder, unless the current one has its own.
    """
    path = Path(path)
    if str(path) in packaged_configs():
        return packaged_configs()[str(path)]
    packaged = FOLDER.parents[2] / path
    if path.parts[:3] != ("mill", "models", "configs"):
        return path
    if not path.exists():
        return packaged
    if packaged.exists() and not packaged.samefile(path):
        warn(f"the config {path} is read from the current folder, not from mill: write {path.stem} for the packaged one")
    return path
