"""What identifies weights on disk: their content. Digests are remembered by path, size and time, so a file is read once."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from mill.api.errors import MillError
from mill.api.storage import write_json
from mill.api.validate import read_file

_MEMO = "fingerprints.json"
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
    memo = _read_memo()
    if key in memo:
        return memo[key]
    with path.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _sha256(handle)
    _write_memo({**_read_memo(), key: digest})
    return digest


def folder_digest(folder: Path) -> str:
    """One digest over the names and contents of a model folder's own files; other files do not count."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.is_file() and path.suffix in _SUFFIXES and not path.name.startswith("."):
            digest.update(f"{path.name} {file_digest(path)}\n".encode())
    return digest.hexdigest()


def weights_size(folder: Path) -> int | None:
    """The bytes of a model folder's weights; None where it has none that are known by their names."""
    for suffix in ("*.safetensors", "*.gguf", "*.bin", "*.npz"):  # a folder may hold the same weights in several formats
        found = sum(path.stat().st_size for path in folder.glob(suffix))
        if found:
            return found
    return None


def cache_folder() -> Path:
    """Where mill keeps what it may lose: MILL_CACHE, or a folder in the user's cache."""
    given = os.environ.get("MILL_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mill"


def _read_memo() -> dict[str, str]:
    """Digests by file; none where the memo is missing or not as mill writes it."""
    file = cache_folder() / _MEMO
    try:
        return read_file(file, dict[str, str])
    except (MillError, FileNotFoundError):
        return {}


def _write_memo(memo: dict[str, str]) -> None:
    """A memo that cannot be written only costs time."""
    folder = cache_folder()
    with contextlib.suppress(MillError):
        write_json(folder / _MEMO, memo, root=folder)


def _sha256(handle: object) -> str:
    digest = hashlib.sha256()
    while block := handle.read(1 << 20):  # type: ignore[attr-defined]
        digest.update(block)
    return digest.hexdigest()
