"""Images and audio inside tables: their bytes stay in the file until they are needed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import partial
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import Any

from mill.api.errors import DataError, MissingValue
from mill.api.message import Blob
from mill.support.terminal import describe


def media_columns(schema: Any) -> list[str]:
    """Columns of bytes, or of the struct that `datasets` makes of images and audio: bytes and a path."""
    import pyarrow as pa

    def is_media(kind: Any) -> bool:
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return True
        return pa.types.is_struct(kind) and {kind.field(index).name for index in range(kind.num_fields)} == {"bytes", "path"}

    return [field.name for field in schema if is_media(field.type)]


def with_blobs(table: Any, where: str) -> Iterator[dict[str, Any]]:
    """The rows of an Arrow table, its media as Blobs that read the (memory-mapped) table."""
    media = media_columns(table.schema)
    rows = table.drop_columns(media).to_pylist() if len(media) < table.num_columns else [{} for _ in range(table.num_rows)]
    for number, row in enumerate(rows):
        yield row | {name: _blob(partial(_cell, table, name, number), where, name, number) for name in media}


class ParquetBlobs:
    """Media of a Parquet file; the last row group is cached, since rows are mostly read in order.

    Without `paths`, a cell that has a path instead of bytes is refused.
    """

    def __init__(self, file: Any, where: str, paths: bool = True) -> None:
        self._file, self._where, self._paths = file, where, paths
        sizes = (file.metadata.row_group(index).num_rows for index in range(file.num_row_groups))
        self._starts = [0, *accumulate(sizes)]
        self._lock = Lock()
        self._cached: tuple[int, str, Any] | None = None

    def blob(self, column: str, row: int) -> Blob:
        return _blob(partial(self._read, column, row), self._where, column, row, self._paths)

    def _read(self, column: str, row: int) -> dict[str, Any] | None:
        group = bisect_right(self._starts, row) - 1
        with self._lock:  # readers run in threads
            if self._cached is None or self._cached[:2] != (group, column):
                self._cached = group, column, self._file.read_row_group(group, columns=[column])
            return _cell(self._cached[2], column, row - self._starts[group])


def _cell(table: Any, column: str, row: int) -> dict[str, Any] | None:
    value = table.column(column)[row].as_py()
    return {"bytes": value, "path": None} if isinstance(value, bytes) else value


def _blob(cell: Any, where: str, column: str, row: int, paths: bool = True) -> Blob:
    name = f"{where} ({column} of row {row})"

    def read() -> bytes:
        try:
            value = cell()
        except (OSError, ValueError) as error:  # pyarrow's own errors are among these
            raise DataError(f"{name} cannot be read: {describe(error)}") from error
        if value is None or (value["bytes"] is None and not value["path"]):
            raise MissingValue(f"{name} is missing")
        if value["bytes"] is not None:
            return bytes(value["bytes"])
        if not paths:
            raise DataError(f"{name} has a path and no bytes")
        try:
            return Path(value["path"]).read_bytes()
        except OSError as error:
            raise DataError(f"{name} is {value['path']}, which cannot be read: {error.strerror}") from error

    return Blob(name, read)
