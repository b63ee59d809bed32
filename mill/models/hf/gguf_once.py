"""GGUF files read once.

transformers reads a file's header anew for the config, the tokenizer and the weights, and makes the table of tensor names
anew for every module: more than half of the time that a small model takes to load.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_originals: dict[str, Any] = {}


@contextlib.contextmanager
def read_once() -> Iterator[None]:
    """For the time of a load, whoever reads a file that was just read gets what was found."""
    library: Any = importlib.import_module("gguf")
    _originals.update(reader=library.GGUFReader, names=library.get_tensor_name_map)
    library.GGUFReader, library.get_tensor_name_map = _reader, _names
    try:
        yield
    finally:
        library.GGUFReader, library.get_tensor_name_map = _originals["reader"], _originals["names"]


def forget() -> None:
    """What was read of a vocabulary takes more room than the vocabulary."""
    _read.cache_clear()


def _reader(path: str | Path) -> Any:
    found = Path(path).stat()
    return _read(str(path), found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=1)
def _read(path: str, changed: int, size: int) -> Any:
    return _originals["reader"](path)


@functools.lru_cache(maxsize=1)
def _names(architecture: Any, blocks: int) -> Any:
    return _originals["names"](architecture, blocks)
