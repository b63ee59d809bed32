"""Fingerprints of weights on disk, by content. Digests are cached by path, size and time, so a file is read once."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from mill.api.background import Background
from mill.api.errors import MillError
from mill.api.storage import cache_folder, write_json
from mill.api.validate import read_file

_CACHE = "fingerprints.json"
_BLOCK = 1 << 22  # bytes read at a time; larger ones let other threads run while they are digested
_SUFFIXES = {
    ".safetensors",
    ".bin",
    ".gguf",
    ".pt",
    ".pth",
    ".npz",
    ".json",
    ".jinja",
    ".model",
    ".txt",
    ".py",
    ".tiktoken",
}


def file_digest(path: Path) -> str:
    """The SHA-256 of a file."""
    return _digests([path])[path]


def folder_digest(folder: Path) -> str:
    """One digest over the names and contents of a folder's model files; other files are ignored."""
    paths = [path for path in sorted(folder.iterdir()) if path.is_file() and path.suffix in _SUFFIXES]
    digests, digest = _digests([path for path in paths if not path.name.startswith(".")]), hashlib.sha256()
    for path, content in digests.items():
        digest.update(f"{path.name} {content}\n".encode())
    return digest.hexdigest()


def _digests(paths: Sequence[Path]) -> dict[Path, str]:
    """The SHA-256 of each file. Those that are not known are read at the same time: shards of weights take long."""
    cache = _read_cache()
    keys = {path: _cache_key(path) for path in paths}
    unknown = [path for path, key in keys.items() if key not in cache]
    started = {keys[path]: Background(partial(_sha256, path)) for path in unknown}
    found = {key: digest.result() for key, digest in started.items()}
    if found:
        _write_cache({**_read_cache(), **found})
    cache |= found
    return {path: cache[key] for path, key in keys.items()}


def _cache_key(path: Path) -> str:
    stat = path.stat()
    return f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"


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


def _write_cache(cache: dict[str, str]) -> None:
    """A failure to write only costs time."""
    folder = cache_folder()
    with contextlib.suppress(MillError):
        write_json(folder / _CACHE, cache, root=folder)


def _sha256(path: Path) -> str:
    digest, block = hashlib.sha256(), bytearray(_BLOCK)
    with path.open("rb", buffering=0) as handle:
        while count := handle.readinto(block):
            digest.update(memoryview(block)[:count])
    return digest.hexdigest()
