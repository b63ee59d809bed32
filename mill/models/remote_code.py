"""Code that comes with a model: said aloud before it runs, and forbidden by --no_remote_code."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from mill.api.notice import notice

FORBIDDEN = "MILL_NO_REMOTE_CODE"  # in the environment, so that workers and jobs keep to it too


def forbid_remote_code() -> None:
    os.environ[FORBIDDEN] = "1"


def remote_code_forbidden() -> bool:
    return bool(os.environ.get(FORBIDDEN))


def announce_remote_code(path: str, revision: str | None = None) -> None:
    """Say once which files of a model will be executed. Only its configs are read to find out."""
    files = remote_code_of(path, revision)
    if files:
        notice(f"{path} brings code of its own, which will run: {', '.join(files)}; --no_remote_code forbids it")


def remote_code_of(path: str, revision: str | None = None) -> list[str]:
    """The Python files that a model's configs name; with the repository's name where they lie in another one."""
    from transformers import PretrainedConfig
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    found: dict[str, None] = {}
    for read in (PretrainedConfig.get_config_dict, get_tokenizer_config):
        try:
            config: Any = read(path, revision=revision)
        except Exception:  # whatever is wrong with the files is told when they are loaded
            continue
        config = config[0] if isinstance(config, tuple) else config
        for target in _targets((config or {}).get("auto_map")):
            repository, _, name = target.rpartition("--")
            file = f"{name.rpartition('.')[0]}.py"
            found[f"{repository}: {file}" if repository else file] = None
    return list(found)


def _targets(auto_map: Any) -> list[str]:
    """The classes in an auto_map: a mapping whose values may be lists with gaps, or such a list itself."""
    values = auto_map.values() if isinstance(auto_map, Mapping) else (auto_map or ())
    flat = [part for value in values for part in (value if isinstance(value, (list, tuple)) else [value])]
    return [part for part in flat if isinstance(part, str)]
