"""Pages that need no server: the script and the data of a page are what the server has."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from mill.api.errors import RunError
from mill.view import offline
from mill.view.index import ResultsIndex
from mill.view.offline import index_page, results_page
from mill.view.page import STATIC, live_page, offline_page, script
from tests.view.conftest import uid_of_model
from tests.view.saved_checks import page_data

OWN = [file for file in STATIC.rglob("*.js") if "vendor" not in file.parts]


def test_the_modules_are_one_classic_script() -> None:
    text = script()
    assert not re.search(r"^\s*(import|export)\b", text, re.MULTILINE)
    for file in OWN:
        assert text.count(file.read_text().partition("\n")[0]) == 1, file


def test_the_page_is_small_and_loads_nothing() -> None:
    assert len(live_page()) < 200_000
    for file in [*OWN, STATIC / "style.css", STATIC / "index.html"]:
        assert not re.search(r"""(https?:|["'(])//\w""", file.read_text()), file


def test_no_text_ends_the_data() -> None:
    hostile = {"a": "</script><script>alert(1)</script><!--", "<b>": float("nan"), "c": "\ud800 \u2028"}
    page = offline_page(hostile).decode()
    (text,) = re.findall('<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert "<" not in text
    assert json.loads(text)["a"] == hostile["a"]
    assert page.count("<script") == 2


@pytest.fixture
def limited(index: ResultsIndex, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(offline, "MOST_ROWS", 4)
    return page_data(index_page(index))


def test_the_first_rows_of_each_task_are_held(limited: dict[str, Any], index: ResultsIndex) -> None:
    run = limited["runs"][uid_of_model(index, "one")]
    held = [(row["task"], row["id"]) for row in run["samples"]]
    assert [name for task, name in held if task == "toy_gen"] == ["0", "1", "2", "3"]
    assert len(held) == 4 * len(index.runs[uid_of_model(index, "one")].tasks)
    assert run["run"]["held"][0] == "toy_gen: the first 4 of 40 samples are here"
    assert run["load"][""]["samples"] > 100  # figures are over all samples


def test_pairs_are_of_rows_that_are_held_and_tests_are_over_all(limited: dict[str, Any], index: ResultsIndex) -> None:
    found = limited["pairs"][f"{uid_of_model(index, 'one')}/{uid_of_model(index, 'two')}"]
    assert 0 < len(found["rows"]) <= 12
    assert found["compare"]["toy_gen"]["n"] == 40
    assert {"other", "tokens", "diff"} <= set(found["rows"][0])


def test_a_page_is_bounded(index: ResultsIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the seven tasks has the same share."""
    monkeypatch.setattr(offline, "MOST_BYTES", 7 * 10_000)
    data = page_data(index_page(index))
    for run in data["runs"].values():
        for task in run["categories"]:
            rows = [row for row in run["samples"] if row["task"] == task]
            assert rows and sum(len(json.dumps(row)) for row in rows[1:]) < 10_000
    assert len(json.dumps(data["pairs"])) > 1000


def test_media_are_inside_of_the_page_as_far_as_there_is_room() -> None:
    keep = offline._Inlined(left=10)
    assert keep("a", b"12345", "image/png") == "data:image/png;base64,MTIzNDU="
    assert keep("b", b"123456", "image/png") == ""
    assert keep("a", b"12345", "image/png").startswith("data:") and keep.left == 5


def test_what_cannot_be_read_is_refused_alone_and_left_out_of_a_folder(
    results: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RunError, match="contains no run and no check"):
        results_page(tmp_path)
    (tmp_path / "bad" / "default").mkdir(parents=True)
    (tmp_path / "bad" / "default" / "manifest.json").write_text("{")
    with pytest.raises(RunError, match=r"manifest\.json"):
        results_page(tmp_path / "bad" / "default")
    (good,) = results.glob("one-*")
    shutil.copytree(good, tmp_path / "good")
    data = page_data(results_page(tmp_path))
    assert [run["model"] for run in data["state"]["runs"] if not run["error"]] == ["one"] and len(data["runs"]) == 1
    assert "left out: " in caplog.text and "manifest.json" in caplog.text
