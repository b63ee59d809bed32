"""Cached parsing of GGUF files.

transformers parses a file's header for the config, the tokenizer and the weights, and builds the table of tensor names for
every module. Both together take more than half of the load time of a small model.
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
def cached_reads() -> Iterator[None]:
    """Inside this context `gguf` returns its last reader and name table again if the file is unchanged."""
    library: Any = importlib.import_module("gguf")
    _originals.update(reader=library.GGUFReader, names=library.get_tensor_name_map)
    library.GGUFReader, library.get_tensor_name_map = _reader, _names
    try:
        yield
    finally:
        library.GGUFReader, library.get_tensor_name_map = _originals["reader"], _originals["names"]


def clear_cache() -> None:
    """Free the parsed header: that of a large vocabulary takes more memory than the tokenizer."""
    _read.cache_clear()


def _reader(path: str | Path) -> Any:
    stat = Path(path).stat()
    return _read(str(path), stat.st_mtime_ns, stat.st_size)


@functools.lru_cache(maxsize=1)
def _read(path: str, modified_ns: int, size: int) -> Any:
    return _originals["reader"](path)


@functools.lru_cache(maxsize=1)
def _names(architecture: Any, blocks: int) -> Any:
    return _originals["names"](architecture, blocks)
