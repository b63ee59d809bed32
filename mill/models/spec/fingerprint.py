"""The files of a model on disk: their fingerprint by content, their size, and the code among them.

Digests are cached by path, size, times and inode, so a file is read once. Code that comes with a model is logged before it
runs, and forbidden by --no_remote_code.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mill.api.errors import MillError, ModelError
from mill.support.files import cache_folder, write_json
from mill.support.terminal import warn
from mill.support.validate import read_file

_CACHE = "fingerprints.json"
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_BLOCK = 1 << 26  # bytes read at a time; between two blocks a thread waits until others let it run
_READERS = 8  # files that are read at the same time
_SUFFIXES = {
    *(".safetensors", ".bin", ".gguf", ".pt", ".pth", ".npz"),
    *(".json", ".jinja", ".model", ".txt", ".py", ".tiktoken"),
}


@dataclass
class _WeightIndex:
    """Which file has a tensor, as transformers and safetensors write it."""

    weight_map: dict[str, str]


def file_digest(path: Path) -> str:
    """The SHA-256 of a file."""
    return _digests([path])[path]


def folder_digest(folder: Path) -> str:
    """One digest over the names and contents of a folder's model files."""
    digests, digest = _digests(model_files(folder)), hashlib.sha256()
    for path, content in digests.items():
        digest.update(f"{os.path.relpath(path, folder)} {content}\n".encode())
    return digest.hexdigest()


def model_files(folder: Path) -> list[Path]:
    """The files that make a model, with the weights that an index or the config names, and further chat templates."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and path.suffix in _SUFFIXES]
    paths = [path for path in files if not path.name.startswith(".")]
    paths += sorted(path for path in folder.glob("additional_chat_templates/*.jinja") if path.is_file())
    return paths + [path for path in (*_indexed(folder), *_named_in_config(folder)) if path not in paths]


def _named_in_config(folder: Path) -> list[Path]:
    """The file of weights that `transformers_weights` of a config names."""
    with contextlib.suppress(MillError, FileNotFoundError):  # a damaged config is refused where it is loaded
        named = read_file(folder / "config.json", dict[str, Any]).get("transformers_weights")
        if isinstance(named, str) and (folder / named).is_file():
            return [folder / named]
    return []


def _indexed(folder: Path) -> list[Path]:
    """The files that the index of the weights names; a damaged one, or one that names others than files below it, is
    refused."""
    for whole in _WEIGHTS:  # in the order in which transformers looks for them
        if (folder / whole).is_file():
            return []
        index = folder / f"{whole}.index.json"
        if index.is_file():
            names = sorted(set(read_file(index, _WeightIndex, ModelError).weight_map.values()))
            for name in names:
                if Path(name).is_absolute() or ".." in Path(name).parts:
                    raise ModelError(f"{index} names a file outside of its folder: {name}")
                if not (folder / name).is_file():
                    raise ModelError(f"{index} names {name}, which is not there")
            return [folder / name for name in names]
    return []


def _digests(paths: Sequence[Path]) -> dict[Path, str]:
    """The SHA-256 of each file. Those that are not known are read at the same time: shards of weights take long."""
    cache = _read_cache()
    keys = {path: _cache_key(path) for path in paths}
    unknown = [path for path, key in keys.items() if key not in cache]
    largest_first = sorted(unknown, key=lambda path: -path.stat().st_size)
    with ThreadPoolExecutor(_READERS) as readers:
        found = {keys[path]: digest for path, digest in zip(largest_first, readers.map(_sha256, largest_first), strict=True)}
    if found:
        with contextlib.suppress(MillError):  # a failure to write only costs time
            write_json(cache_folder() / _CACHE, {**_read_cache(), **found}, root=cache_folder())
    cache |= found
    return {path: cache[key] for path, key in keys.items()}


def _cache_key(path: Path) -> str:
    stat = path.stat()
    return f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|{stat.st_ctime_ns}|{stat.st_ino}"


def weights_size(folder: Path) -> int | None:
    """The bytes of a model folder's weights; None if no file has a known suffix."""
    for suffix in ("*.safetensors", "*.gguf", "*.bin", "*.npz"):  # a folder may have the same weights in several formats
        size = sum(path.stat().st_size for path in folder.glob(suffix))
        if size:
            return size
    return None


def _read_cache() -> dict[str, str]:
    """Digests by file; empty if the cache is missing or not valid."""
    file = cache_folder() / _CACHE
    try:
        return read_file(file, dict[str, str])
    except (MillError, FileNotFoundError):
        return {}


def _sha256(path: Path) -> str:
    digest, block = hashlib.sha256(), bytearray(min(_BLOCK, max(1, path.stat().st_size)))
    with path.open("rb", buffering=0) as handle:
        while count := handle.readinto(block):
            digest.update(memoryview(block)[:count])
    return digest.hexdigest()


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
