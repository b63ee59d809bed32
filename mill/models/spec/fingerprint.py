"""Fingerprints of weights on disk, by content. Digests are cached by path, size and time, so a file is read once."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from mill.api.errors import MillError
from mill.api.storage import cache_folder, write_json
from mill.api.validate import read_file

_CACHE = "fingerprints.json"
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
    stat = path.stat()
    key = f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}"
    cache = _read_cache()
    if key in cache:
        return cache[key]
    with path.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _sha256(handle)
    _write_cache({**_read_cache(), key: digest})
    return digest


def folder_digest(folder: Path) -> str:
    """One digest over the names and contents of a folder's model files; other files are ignored."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix in _SUFFIXES and not path.name.startswith("."):
            digest.update(f"{path.name} {file_digest(path)}\n".encode())
    return digest.hexdigest()


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


def _sha256(handle: object) -> str:
    digest = hashlib.sha256()
    while block := handle.read(1 << 20):  # type: ignore[attr-defined]
        digest.update(block)
    return digest.hexdigest()
