"""The rows of lm-eval's tasks: folders on the MILL_DATA search path first, then the hub."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mill.api.errors import DataError
from mill.bridges.lm_eval.library import dataset_problem
from mill.compat import reachable_hub
from mill.tasks.data import folders_on_search_path, read_rows, splits_in

_FILE_FORMATS = ("json", "csv", "parquet", "text")
_HUB = "hf://datasets/"


@contextlib.contextmanager
def local_first() -> Iterator[None]:
    """Inside this context `datasets.load_dataset` looks on the search path before it goes to the hub."""
    import datasets

    original = datasets.load_dataset

    def load(path: str | None = None, name: str | None = None, *more: Any, **options: Any) -> Any:
        local = local_splits(str(path), name, options)
        if local is None:
            try:
                with reachable_hub():
                    return original(path, name, *more, **options)
            except Exception as error:
                raise dataset_problem(str(path), name, error) from error
        split = options.get("split")
        return local if split is None else local[str(split)]

    datasets.load_dataset = load
    try:
        yield
    finally:
        datasets.load_dataset = original


def local_splits(path: str, name: str | None, options: Mapping[str, Any]) -> Splits | None:
    """The splits of a dataset on the search path; None where it is not there."""
    files = options.get("data_files")
    if path in _FILE_FORMATS and files:
        return _from_files(files)
    for folder in folders_on_search_path(path, name):
        found = splits_in(folder)
        if found:
            return Splits(found, f"{path}/{name}" if name else path)
    return None


def _from_files(files: Any) -> Splits | None:
    """One file of a hub repository (`hf://datasets/ORG/NAME/FILE`) for each split, where the search path has them."""
    by_split = files if isinstance(files, Mapping) else {"train": files}
    found: dict[str, Path] = {}
    for split, given in by_split.items():
        addresses = [given] if isinstance(given, str) else list(given)
        if len(addresses) != 1 or not str(addresses[0]).startswith(_HUB):
            return None
        organisation, repository, *inside = str(addresses[0]).removeprefix(_HUB).split("/")
        candidates = [folder / Path(*inside) for folder in folders_on_search_path(f"{organisation}/{repository}", None)]
        file = next((path for path in candidates if path.is_file()), None)
        if file is None:
            return None
        found[str(split)] = file
    return Splits(found, str(files))


class Splits(dict[str, Any]):
    """The splits of a local dataset, each read when it is used.

    lm-eval opens the split of the examples also where none are used. For a split that is not there it gets a row of another,
    and `substituted` has its name: it must not be evaluated or drawn from.
    """

    def __init__(self, files: Mapping[str, Path], name: str) -> None:
        super().__init__(dict.fromkeys(files))
        self.files, self.name = dict(files), name
        self.substituted: set[str] = set()

    def __missing__(self, split: str) -> Any:
        self.substituted.add(split)
        return self[next(iter(self.files))].select([0])

    def __getitem__(self, split: str) -> Any:
        found = super().__getitem__(split)
        if found is None:
            found = _read(self.files[split])
            if not len(found):
                raise DataError(f"{self.files[split]} has no rows")
            self[split] = found
        return found

    def copy(self) -> Splits:
        found = Splits(self.files, self.name)
        found.update(self.items())
        return found

    def values(self) -> Any:
        return [self[split] for split in self]

    def items(self) -> Any:
        return [(split, self[split]) for split in self]

    def require(self, split: str | None, why: str) -> None:
        if split in self.substituted:
            raise DataError(f"no data for {self.name} ({split}), {why}: MILL_DATA has {', '.join(sorted(self.files))}")


def _read(path: Path) -> Any:
    import datasets

    if path.is_dir():
        return datasets.load_from_disk(str(path))
    if path.suffix == ".parquet":
        import pyarrow.parquet as pq

        return datasets.Dataset(pq.read_table(path))
    return datasets.Dataset.from_list(read_rows(path))
