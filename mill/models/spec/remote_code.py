"""Remote code, which comes with a model: logged before it runs, and forbidden by --no_remote_code."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mill.support.terminal import warn

_GENERATE = "custom_generate/generate.py"
_CONFIGS = (
    "config.json",
    "tokenizer_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
)


def announce_remote_code(path: str, revision: str | None = None) -> None:
    """Log once which files of a model will be executed. Only its configs are read for that."""
    files = remote_code_of(path, revision)
    if files:
        warn(f"{path} contains code that will run: {', '.join(files)}; --no_remote_code forbids it")


def remote_code_of(path: str, revision: str | None = None) -> list[str]:
    """The Python files of a model that would run; with the repository's name if they are in another one."""
    files: dict[str, None] = {}
    for name in _CONFIGS:
        config = _read(path, revision, name)
        for target in _targets(config.get("auto_map")):
            repository, _, attribute = target.rpartition("--")
            file = f"{attribute.rpartition('.')[0]}.py"
            files[f"{repository}: {file}" if repository else file] = None
        if isinstance(config.get("model_file"), str):  # mlx-lm's
            files[config["model_file"]] = None
    if _locate(path, revision, _GENERATE) is not None:
        files[_GENERATE] = None
    return list(files)


def _read(path: str, revision: str | None, name: str) -> dict[str, Any]:
    """The content of a config file; empty if it cannot be read, which is an error when the model loads."""
    file = _locate(path, revision, name)
    try:
        config = json.loads(Path(file).read_text(encoding="utf-8")) if file is not None else {}
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}


def _locate(path: str, revision: str | None, name: str) -> str | None:
    """The path of a file of a model, downloaded from the hub if necessary."""
    if Path(path).is_dir():
        return str(Path(path) / name) if (Path(path) / name).is_file() else None
    from transformers.utils import cached_file

    try:
        file: str | None = cached_file(path, name, revision=revision, _raise_exceptions_for_missing_entries=False)
        return file
    except Exception:  # no such model, no network: an error when the model loads
        return None


def _targets(auto_map: Any) -> list[str]:
    """The classes in an auto_map: a mapping whose values may be lists with gaps, or such a list itself. Transformers refuses
    anything else."""
    values = auto_map.values() if isinstance(auto_map, Mapping) else auto_map if isinstance(auto_map, list) else ()
    flat = [part for value in values for part in (value if isinstance(value, (list, tuple)) else [value])]
    return [part for part in flat if isinstance(part, str)]
