"""Logs are found by name and first bytes; files that are damaged or hostile are one line, or are counted."""

from __future__ import annotations

import json
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from mill.api.errors import RunError
from mill.view.other_logs import inspect_log
from mill.view.other_logs.inspect_files import open_inspect_log, zip_members
from mill.view.scan import OtherLog, identify_log, scan
from tests.view.conversion import LOGS, Converted, converted

DATE = "2026-01-02T03-04-05.678901"
HEADER: dict[str, Any] = {
    "version": 2,
    "status": "success",
    "eval": {"task": "sums", "model": "openai/gpt", "dataset": {}, "config": {}, "created": "2026-01-02T03:04:05+00:00"},
}
SAMPLE: dict[str, Any] = {
    "id": 1,
    "epoch": 1,
    "input": "What?",
    "target": "2",
    "messages": [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "2", "source": "generate"}],
    "scores": {"match": {"value": "C"}},
}
RESULTS: dict[str, Any] = {
    "results": {"sums": {"alias": "sums", "acc,none": 0.5, "acc_stderr,none": float("nan")}},
    "n-samples": {"sums": {"original": 2, "effective": 2}},
    "config": {"model": "hf", "model_args": {"pretrained": "a", "token": "secret"}},
}
LINE: dict[str, Any] = {
    "doc_id": 0,
    "doc": {"text": "What?"},
    "target": "2",
    "arguments": {"gen_args_0": {"arg_0": "What?", "arg_1": {"until": []}}},
    "resps": [["2"]],
    "filtered_resps": ["2"],
    "acc": 1.0,
}


def write_eval(file: Path, members: dict[str, Any]) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content if isinstance(content, (str, bytes)) else json.dumps(content))
    return file


def run_of(tmp_path: Path, *samples: Any) -> Converted:
    """A log of inspect_ai with these samples."""
    members = {f"samples/{number}_epoch_1.json": sample for number, sample in enumerate(samples, 1)}
    return converted(write_eval(tmp_path / "log.eval", {"header.json": HEADER, **members}), tmp_path / "run")


def lm_eval_log(folder: Path, results: Any, *lines: Any) -> Path:
    file = folder / f"results_{DATE}.json"
    file.write_text(json.dumps(results))
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    (folder / f"samples_sums_{DATE}.jsonl").write_text(text)
    return file


def test_logs_are_found_by_their_content(tmp_path: Path) -> None:
    write_eval(tmp_path / "a.eval", {"_journal/start.json": HEADER})
    write_eval(tmp_path / "b.eval", {"other.json": HEADER})
    (tmp_path / "c.eval").write_text("PK")
    (tmp_path / "d.json").write_text(json.dumps(HEADER, indent=2))
    (tmp_path / "e.json").write_text(json.dumps({"version": 2, "status": "success"}))
    (tmp_path / f"f_{DATE}.json").write_text('{\n "results": {"sums": {}}}')
    (tmp_path / f"g_{DATE}.json").write_text('{"tasks": {}}')
    (tmp_path / "results.json").write_text('{"results": {}}')
    assert [(log.tool, log.path.name) for log in scan(tmp_path).logs] == [
        ("inspect_ai", "a.eval"),
        ("inspect_ai", "d.json"),
        ("lm-eval", f"f_{DATE}.json"),
    ]
    assert identify_log(tmp_path / "missing.eval") is None
    assert identify_log(tmp_path) is None


def test_links_are_not_followed(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    log = write_eval(outside / "log.eval", {"header.json": HEADER})
    lm_eval_log(outside, RESULTS, LINE)
    (inside / "log.eval").symlink_to(log)
    (inside / "folder").symlink_to(outside)
    (inside / f"results_{DATE}.json").write_text(json.dumps(RESULTS))
    (inside / f"samples_sums_{DATE}.jsonl").symlink_to(outside / f"samples_sums_{DATE}.jsonl")
    (found,) = scan(inside).logs
    assert found.files == (inside / f"results_{DATE}.json",)
    assert identify_log(inside / "log.eval") is None


def test_the_smallest_logs(tmp_path: Path) -> None:
    run = run_of(tmp_path, SAMPLE)
    assert run.rows("sums")["1"]["match"] == 1.0
    assert run.manifest["model"]["name"] == "gpt"
    (tmp_path / "lm").mkdir()
    lm = converted(lm_eval_log(tmp_path / "lm", RESULTS, LINE), tmp_path / "lm_run")
    assert lm.rows("sums")["0"]["acc"] == 1.0
    estimate = lm.results.tasks["sums"].metrics["acc"]
    assert (estimate.value, estimate.stderr, estimate.low, estimate.n) == (0.5, None, None, 2)
    assert lm.manifest["model"]["arguments"] == {"pretrained": "a", "token": "***"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header: header["eval"].update(model=3), r"eval\.model: expected str, got int"),
        (lambda header: header.update(results={"scores": [{"name": 1}]}), r"results\.scores\[0\]\.name: expected str"),
        (lambda header: header.pop("eval"), "missing required field eval"),
        (lambda header: header.update(version=1), "has version 1"),
        (
            lambda header: header.update(stats={"model_usage": {"x": {"input_tokens": "x"}}}),
            r"model_usage.*expected int, got str",
        ),
    ],
)
def test_a_broken_header_is_one_line(change: Callable[[Any], object], message: str, tmp_path: Path) -> None:
    header = json.loads(json.dumps(HEADER))
    change(header)
    file = write_eval(tmp_path / "log.eval", {"header.json": header})
    with pytest.raises(RunError, match=rf"log\.eval, header\.json, .*{message}") as error:
        OtherLog("inspect_ai", file, (file,)).convert(tmp_path / "run")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ({"results": []}, "results: expected object, got array"),
        ({"results": {"a": 1}}, r"results\[\.\.\.\]: expected object, got int"),
        ({"results": {}, "n-samples": {"a": {"original": "x"}}}, "original: expected int, got str"),
        ([], "expected object, got array"),
    ],
)
def test_a_broken_results_file_is_one_line(results: Any, message: str, tmp_path: Path) -> None:
    file = lm_eval_log(tmp_path, results)
    with pytest.raises(RunError, match=f"results_{DATE}.json is not valid: .*{message}"):
        OtherLog("lm-eval", file, (file,)).convert(tmp_path / "run")


def test_files_that_vanish_or_are_cut(tmp_path: Path) -> None:
    file = tmp_path / "log.eval"
    with pytest.raises(RunError, match=r"log\.eval: there is no such file"):
        OtherLog("inspect_ai", file, (file,)).convert(tmp_path / "run")
    file.write_bytes((LOGS / "epochs.eval").read_bytes()[:-40])
    with pytest.raises(RunError, match=r"log\.eval is not a valid zip file"):
        OtherLog("inspect_ai", file, (file,)).convert(tmp_path / "run")
    results = lm_eval_log(tmp_path, RESULTS)
    missing = tmp_path / f"samples_other_{DATE}.jsonl"
    with pytest.raises(RunError, match=r"samples_other_.*: there is no such file"):
        OtherLog("lm-eval", results, (results, missing)).convert(tmp_path / "run")
    text = (LOGS / "image.json").read_text()
    (tmp_path / "cut.json").write_text(text[: len(text) // 2])
    with pytest.raises(RunError, match=r"cut\.json is not valid JSON"):
        converted(tmp_path / "cut.json", tmp_path / "cut")
    assert not list((tmp_path / "run").rglob("*.jsonl"))
    assert not list((tmp_path / "run").rglob(".2*")), "a draft is left"


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        ("{", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ([], "expected object, got array"),
        ({**SAMPLE, "messages": [{"content": "x"}]}, r"messages[0]: object missing required field role"),
        ({**SAMPLE, "scores": {"match": {"value": {"a": []}}}}, "scores"),
        ({**SAMPLE, "id": None}, "id: expected"),
        ({**SAMPLE, "events": [{"event": "model", "output": 3}]}, "output: expected object, got int"),
        ({**SAMPLE, "attachments": {"a": "b"}, "events": 3}, "events: expected array"),
        (SAMPLE, "sample 1: there is a second sample of this id"),
    ],
)
def test_a_broken_sample_is_counted(sample: Any, reason: str, tmp_path: Path) -> None:
    run = run_of(tmp_path, SAMPLE, sample)
    (warning,) = run.results.tasks["sums"].warnings
    assert warning.startswith("1 samples cannot be read, the first: ")
    assert reason in warning
    assert list(run.samples("sums")) == ["1"]


def test_texts_and_numbers_that_json_does_not_have(tmp_path: Path) -> None:
    nested: Any = "deep"
    for _ in range(300):
        nested = [nested]
    odd = {
        **SAMPLE,
        "metadata": {"x": float("nan"), "y": "\ud800"},
        "messages": [{"role": "user", "content": "\udfff"}, {"role": "assistant", "content": "a\ud800b\\"}],
        "scores": {
            "nan": {"value": float("nan")},
            "infinite": {"value": float("inf")},
            "text": {"value": "maybe"},
            "word": {"value": "Yes"},
            "list": {"value": [1, "C"]},
            "response": {"value": 0.25},
            "huge": {"value": 2**63},
        },
    }
    run = run_of(tmp_path, odd, {**SAMPLE, "id": 2, "metadata": {"nested": nested}})
    row = run.rows("sums")["1"]
    assert row["values"] == {
        "nan": [None],
        "infinite": ["Infinity"],
        "text": ["maybe"],
        "word": [1.0],
        "list": ["[1.0, 'C']"],
        "response": [0.25],
        "huge": [float(2**63)],
    }
    assert (row["infinite"], row["metric_response"], row["word"]) == (None, 0.25, 1.0)
    record = run.samples("sums")["1"]
    assert record.responses[0][0].text == "a\ud800b\\"
    assert record.sample.doc["metadata"] == {"x": "NaN", "y": "\ud800"}
    assert "nested deeper than 200 levels" in run.results.tasks["sums"].warnings[0]


def test_names_in_a_zip_file_are_no_paths(tmp_path: Path) -> None:
    names = ["samples/../../../evil_epoch_1.json", "/samples/x_epoch_1.json", "../evil.json", "samples/\0_epoch_1.json"]
    members = {name: {**SAMPLE, "id": name} for name in names}
    file = write_eval(
        tmp_path / "log.eval", {"header.json": {**HEADER, "eval": {**HEADER["eval"], "task": "../../x"}}, **members}
    )
    run = converted(file, tmp_path / "deep" / "run")
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    samples = run.folder.samples_file("../../x").relative_to(tmp_path).as_posix()
    assert files == {"log.eval", "deep/run/manifest.json", "deep/run/results.json", samples}
    assert samples.startswith("deep/run/samples/")
    assert "samples/../../../evil_epoch_1.json" in run.samples("../../x")


def test_a_zip_bomb_is_not_decompressed(tmp_path: Path) -> None:
    file = tmp_path / "log.eval"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("header.json", json.dumps(HEADER))
        with archive.open("samples/1_epoch_1.json", "w", force_zip64=True) as member:
            for _ in range(300):
                member.write(b" " * (1 << 20))
    tracemalloc.start()
    run = converted(file, tmp_path / "run")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "is larger than 256 MiB" in run.results.tasks["sums"].warnings[0]
    assert peak < 20 << 20


def test_sizes_that_are_wrong(tmp_path: Path) -> None:
    """A member that is larger than the file says is read up to that size; members that overlap are refused."""
    file = write_eval(tmp_path / "log.eval", {"header.json": HEADER, "samples/1_epoch_1.json": b"x" * 100_000})
    raw = bytearray(file.read_bytes())
    at = raw.rindex(b"PK\x01\x02")
    struct.pack_into("<I", raw, at + 24, 10)
    file.write_bytes(raw)
    with zip_members(file) as members, pytest.raises(RunError, match="its size or checksum is wrong"):
        members["samples/1_epoch_1.json"]()
    same = BytesIO()
    with zipfile.ZipFile(same, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("a", b"x" * 10_000)
        info = archive.getinfo("a")
        for number in range(9):
            twin = zipfile.ZipInfo(f"b{number}")
            twin.header_offset, twin.file_size, twin.compress_size, twin.CRC = (
                0,
                info.file_size,
                info.compress_size,
                info.CRC,
            )
            archive.filelist.append(twin)
    file.write_bytes(same.getvalue())
    with pytest.raises(RunError, match="its members overlap"), zip_members(file):
        pass


def test_every_byte_of_a_log_may_be_damaged(tmp_path: Path) -> None:
    """Zstandard, as inspect_ai writes it: a flipped byte is one line or a counted sample, never another error."""
    raw = (LOGS / "tools.eval").read_bytes()
    refused = 0
    for position in range(0, len(raw), 97):
        damaged = bytearray(raw)
        damaged[position] ^= 0x55
        file = tmp_path / f"{position}.eval"
        file.write_bytes(damaged)
        try:
            OtherLog("inspect_ai", file, (file,)).convert(tmp_path / str(position))
        except RunError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 5


def test_an_attachment_that_is_used_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_log, "MOST_LINE", 1000)
    once = {**SAMPLE, "attachments": {"a": "x" * 600}, "input": "attachment://a"}
    twice = {**once, "id": 2, "metadata": {"again": "attachment://a"}}
    run = run_of(tmp_path, once, twice)
    assert run.rows("sums")["1"]["doc"]["input"] == "x" * 600
    assert "with its attachments" in run.results.tasks["sums"].warnings[0]


def test_odd_lines_of_lm_eval(tmp_path: Path) -> None:
    lines = [
        {**LINE, "doc": "no object", "acc": float("nan"), "resps": [["\ud800"]]},
        {**LINE, "doc_id": 1, "acc": 10**400, "arguments": [["What?", {"until": []}]]},
        {**LINE, "doc_id": 2, "acc": {"a": 1, "b": [2]}},
        {**LINE, "doc_id": 2},
        {**LINE, "doc_id": 3, "resps": []},
        {
            **LINE,
            "doc_id": 4,
            "arguments": {"gen_args_0": {"arg_0": ['[{"role": "user", "content": "What?"}]'], "arg_1": {}}},
        },
    ]
    run = converted(lm_eval_log(tmp_path, RESULTS, *lines), tmp_path / "run")
    samples, rows = run.samples("sums"), run.rows("sums")
    assert list(samples) == ["0", "1", "2", "4"]
    assert samples["0"].responses[0][0].text == "\ud800"
    assert rows["0"]["values"]["acc"] == ["NaN"]
    assert rows["0"]["doc"] == {"doc": "no object"}
    assert rows["4"]["prompt"] == '[{"role": "user", "content": "What?"}]'
    assert run.results.tasks["sums"].warnings[0].startswith("2 samples cannot be read")


def test_lines_that_do_not_name_their_filter(tmp_path: Path) -> None:
    """As of lm-eval 0.4.3: the lines of a document are in the order of the task's filters."""
    results = {**RESULTS, "configs": {"sums": {"filter_list": [{"name": "strict"}, {"name": "flexible"}]}}}
    lines = [LINE, {**LINE, "doc_id": 1}, {**LINE, "acc": 0.0, "filtered_resps": ["3"]}, {**LINE, "doc_id": 1, "acc": 0.5}]
    rows = converted(lm_eval_log(tmp_path, results, *lines), tmp_path / "run").rows("sums")
    assert [row["values"] for row in rows.values()] == [
        {"acc,strict": [1.0], "acc,flexible": [0.0]},
        {"acc,strict": [1.0], "acc,flexible": [0.5]},
    ]
    assert rows["0"]["extracted"] == "2"


@pytest.mark.parametrize("text", ["", "[", '{"a"', '{"a": 1', "{1: 2}", '{"a": 1 "b": 2}', '{"a": \xff}'])
def test_json_that_is_cut_or_wrong(text: str, tmp_path: Path) -> None:
    (tmp_path / "log.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(RunError, match=r"log\.json is not valid JSON"), open_inspect_log(tmp_path / "log.json"):
        pass


def test_a_large_log_is_not_held_in_memory(tmp_path: Path) -> None:
    """Twenty samples of 2 MB in two epochs take the memory of one of them."""
    text = "word " * 400_000
    messages = [*SAMPLE["messages"][:1], {"role": "assistant", "content": text}]
    samples = [{**SAMPLE, "id": number % 10, "epoch": 1 + number // 10, "messages": messages} for number in range(20)]
    members = {f"samples/{one['id']}_epoch_{one['epoch']}.json": one for one in samples}
    write_eval(tmp_path / "log.eval", {"header.json": HEADER, **members})
    tracemalloc.start()
    run = converted(tmp_path / "log.eval", tmp_path / "run")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30 << 20
    assert [len(record.responses) for record in run.samples("sums").values()] == [2] * 10
