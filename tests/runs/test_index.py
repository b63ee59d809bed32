"""Where answers stand in a record: every reader finds the same, whenever and in whatever order it looks."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mill.api.errors import RunError
from mill.api.request import GENERATE, LOGLIKELIHOOD, Request
from mill.api.response import Response
from mill.store.record import Index, Record
from mill.support import files

ODD = "lone \ud800 surrogate, \u2028 line and \u2029 paragraph, \x85 and \r\n, \x00, \U0001f600"
SCORED = Request(LOGLIKELIHOOD, "a", " b", options={"logprobs": "all"})


def ask(number: int, kind: str = GENERATE, **options: Any) -> Request:
    return Request(kind, f"question {number}", options=options)


def kind_of(response: Response) -> str:
    return GENERATE if response.score is None else LOGLIKELIHOOD


def line(key: str, text: str, *, failed: bool = False) -> bytes:
    """A line as `Record` writes it."""
    response = {"error": text} if failed else {"text": text}
    head = {"key": key, "kind": GENERATE, "deterministic": True, "failed": failed, "response": response}
    return json.dumps(head, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def append(file: Path, data: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as handle:
        handle.write(data)


def answer(index: Index, key: str) -> Mapping[str, Any] | None:
    offset = index.find(key)
    return None if offset is None else index.response(offset).to_dict()


def put(folder: Path, request: Request, response: Response, *, shareable: bool = True) -> Response:
    record = Record(folder, shareable=shareable)
    kept = record.put(request, response)
    record.close()
    return kept


any_text = st.text(st.characters() | st.sampled_from(ODD), max_size=20)
any_response = st.one_of(
    st.builds(Response, text=any_text, seconds=st.floats(0, 1), truncated_tokens=st.integers(0, 3)),
    st.builds(Response, score=st.floats(allow_nan=False), is_greedy=st.booleans()),
    st.builds(Response, error=any_text),
)


@given(st.lists(st.tuples(any_response, st.booleans()), max_size=6))
@settings(max_examples=60)
def test_a_line_means_the_same_in_any_order_of_its_fields(
    answers: list[tuple[Response, bool]],
) -> None:
    with tempfile.TemporaryDirectory() as root:
        written, kept = Record(Path(root) / "run"), []
        for number, (response, sampled) in enumerate(answers):
            kept.append(written.put(ask(number, kind_of(response), temperature=float(sampled)), response))
        written.close()
        for file in (Path(root) / "run/record").glob("*.jsonl"):
            for one in file.read_bytes().split(b"\n")[:-1]:
                turned = dict(reversed(json.loads(one).items()))
                append(Path(root) / "other/record" / file.name, json.dumps(turned).encode() + b"\n")
        written_here, turned_around = Index(Path(root) / "run/record"), Index(Path(root) / "other/record")
        assert len(written_here) == len(turned_around) == len(answers)
        for number, (response, (_, sampled)) in enumerate(zip(kept, answers, strict=True)):
            key = ask(number, kind_of(response), temperature=float(sampled)).key
            for index in (written_here, turned_around):
                offset = index.find(key)
                assert offset is not None and index.response(offset) == response
                assert (offset.failed, offset.deterministic) == (response.failed, not sampled)


Step = tuple[str, str, bool, float, bool]


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from("123"), st.booleans(), st.floats(0, 1), st.booleans()), max_size=12
    )
)
@settings(max_examples=80)
def test_an_answer_wins_over_an_error_and_the_first_file_before_others_in_any_order(steps: list[Step]) -> None:
    """Files grow in any order, a line is seen in pieces, and the reader looks now and then."""
    expected: dict[str, tuple[bool, str, int]] = {}
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        early = Index(folder)
        for number, (name, key, failed, cut, looks) in enumerate(steps):
            file, data = folder / f"{name}.jsonl", line(key, f"{number}", failed=failed)
            part = int(cut * len(data))
            append(file, data[:part])
            if looks:
                early.refresh()
            append(file, data[part:])
            rank = (failed, name, number)
            expected[key] = min(expected.get(key, rank), rank)
        early.refresh()
        for index in (early, Index(folder)):
            assert len(index) == len(expected)
            for key, (failed, _, number) in expected.items():
                assert answer(index, key) == {"error" if failed else "text": str(number)}


def test_lines_of_the_first_version_are_read(tmp_path: Path) -> None:
    """They did not say `failed`, and those of its very beginning not even `deterministic`."""
    for key, flags in {"1": {"deterministic": True}, "2": {}, "3": {"deterministic": True}}.items():
        response = {"error": "no"} if key == "3" else {"text": key}
        entry = {"key": key, "kind": GENERATE, **flags, "response": response}
        append(tmp_path / "a.jsonl", json.dumps(entry).encode() + b"\n")
    index = Index(tmp_path)
    found = [index.find(key) for key in "123"]
    assert [offset and (offset.failed, offset.deterministic) for offset in found] == [
        (False, True),
        (False, False),
        (True, True),
    ]
    assert answer(index, "2") == {"text": "2"}


def test_a_torn_last_line_is_seen_once_its_writer_has_completed_it(tmp_path: Path) -> None:
    data = line("2", ODD)
    append(tmp_path / "a.jsonl", line("1", "x"))
    index = Index(tmp_path)
    for end in range(len(data)):
        append(tmp_path / "a.jsonl", data[end : end + 1])
        index.refresh()
        assert (answer(index, "2") is not None) == (end == len(data) - 1)
    assert answer(index, "2") == {"text": ODD}


class Growing(io.RawIOBase):
    """A file whose writer adds to it while it is read: an empty piece is the end that a reader meets meanwhile."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return offset

    def tell(self) -> int:
        return 0

    def readinto(self, buffer: Any) -> int:
        piece = self._pieces.pop(0) if self._pieces else b""
        buffer[: len(piece)] = piece
        return len(piece)


def test_a_line_completed_between_two_reads_is_not_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large answers are written in pieces, and a reader can fall in between on any file system."""
    first, second = line("1", "x"), line("2", "y")
    append(tmp_path / "a.jsonl", first + second)
    pieces = (first + second[:-20], b"", second[-20:], b"")
    with monkeypatch.context() as patched:
        patched.setattr(files, "open_regular", lambda *_: io.BufferedReader(Growing(*pieces)))
        index = Index(tmp_path)
    assert answer(index, "1") == {"text": "x"} and answer(index, "2") is None
    index.refresh()
    assert answer(index, "2") == {"text": "y"}


@pytest.mark.parametrize(
    "bad",
    [
        b'{"key": brok\n',
        b"\n",
        b'{"kind": "generate_until", "response": {}}\n',
        b'{"key": "2", "kind": "generate_until"}\n',
        b"\x00\x00\x00\xff\n",
        line("2", "long enough").replace(b"long", b'long"'),
    ],
)
def test_a_damaged_line_is_reported_with_its_file_and_offset(tmp_path: Path, bad: bytes) -> None:
    append(tmp_path / "a.jsonl", line("1", "x") + bad + line("3", "x"))
    with pytest.raises(RunError) as caught:
        Index(tmp_path)
    where = f"{tmp_path / 'a.jsonl'} is damaged at byte {len(line('1', 'x'))} "
    assert str(caught.value).startswith(where) and "move the file away" in str(caught.value)


@pytest.mark.parametrize(
    "name", ["../../x", "../../../etc/passwd", "/etc/passwd", "run/distributions/../../../x", "run/out/x.npy"]
)
def test_a_distribution_outside_of_the_models_runs_is_refused(tmp_path: Path, name: str) -> None:
    """A record may come from somebody else."""
    root = tmp_path / "results/model"
    put(root / "run", SCORED, Response(score=-1.0, is_greedy=True, distribution=name))
    (tmp_path / "results/x").write_text("")
    (tmp_path / "x.npy").write_text("")
    (root / "run/out").symlink_to(tmp_path)
    with pytest.raises(RunError) as caught:
        Record(root / "run").get(SCORED)
    assert repr(name) in str(caught.value) and f"outside of {root}" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "response"),
    [
        (GENERATE, {}),
        (GENERATE, {"text": None}),
        (LOGLIKELIHOOD, {"text": "x"}),
        ("classify", {"text": "x"}),
        ("nosuch", {"text": "x"}),
    ],
)
def test_a_line_that_lacks_what_its_kind_needs_is_no_answer(
    tmp_path: Path, kind: str, response: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """It is ignored with a warning and computed again; its line never wins over the response that comes then."""
    request = ask(1, kind if kind != "nosuch" else GENERATE)
    entry = {"key": request.key, "kind": kind, "deterministic": True, "failed": False, "response": response}
    file = tmp_path / "run/record" / "0.jsonl"
    append(file, json.dumps(entry).encode() + b"\n" + line(ask(2).key, "whole"))
    record = Record(tmp_path / "run")
    assert record.get(request) is None and record.get(ask(2)) == Response(text="whole")
    assert f"{file}: 1 lines have no response of their kind" in caplog.text
    answer = {"classify": Response(label="a"), LOGLIKELIHOOD: Response(score=-2.0)}.get(request.kind, Response(text="new"))
    record.put(request, answer)
    record.close()
    for again in (record, Record(tmp_path / "run")):
        assert again.get(request) == answer


def test_an_answer_with_a_field_of_another_type_is_damage(tmp_path: Path) -> None:
    put(tmp_path / "run", ask(1), Response(text="x", output_tokens=3))
    (file,) = (tmp_path / "run/record").glob("*.jsonl")
    file.write_bytes(file.read_bytes().replace(b'"output_tokens": 3', b'"output_tokens": "3"'))
    with pytest.raises(
        RunError, match=r"damaged at byte 0 \(the response is not valid: output_tokens: expected int \| null, got str\)"
    ):
        Record(tmp_path / "run").get(ask(1))


def test_a_damaged_record_of_another_run_is_reported_and_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    append(tmp_path / "one/record/0.jsonl", b"{}\n")
    put(tmp_path / "two", ask(1, temperature=0.0), Response(text="x"))
    record = Record(tmp_path / "three", [tmp_path / "one", tmp_path / "two"])
    assert record.get(ask(1, temperature=0.0)) == Response(text="x")
    assert "no responses are reused from another run" in caplog.text


# Distributions, and which answers other runs may have.

PLAIN = Request(GENERATE, "a", options={"temperature": 0.0})
VALUES = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]], dtype=np.float32))


def scored(values: np.ndarray = VALUES) -> Response:
    return Response(score=-1.5, is_greedy=False, distribution=values)


def test_a_distribution_goes_to_a_file_that_the_response_names(tmp_path: Path) -> None:
    found = put(tmp_path / "run", SCORED, scored())
    assert found.distribution == f"run/distributions/{SCORED.key}.npy"
    again = Record(tmp_path / "run").get(SCORED)
    assert again is not None and again.distribution == found.distribution
    assert np.array_equal(np.load(tmp_path / again.distribution), VALUES)


def test_an_answer_whose_distribution_was_removed_is_computed_again(tmp_path: Path) -> None:
    found = put(tmp_path / "run", SCORED, scored())
    (tmp_path / str(found.distribution)).unlink()
    assert Record(tmp_path / "run").get(SCORED) is None


def test_a_run_takes_deterministic_answers_from_its_siblings_but_no_distributions(tmp_path: Path) -> None:
    put(tmp_path / "one", SCORED, scored())
    put(tmp_path / "one", PLAIN, Response(text="x"))
    record = Record(tmp_path / "two", [tmp_path / "one"])
    assert record.get(PLAIN) == Response(text="x")
    assert record.get(SCORED) is None
    record.close()


def test_a_run_that_is_not_shareable_shares_no_responses(tmp_path: Path) -> None:
    put(tmp_path / "one", PLAIN, Response(text="x"), shareable=False)
    assert Record(tmp_path / "two", [tmp_path / "one"]).get(PLAIN) is None
    assert Record(tmp_path / "one", shareable=False).get(PLAIN) == Response(text="x")


def test_a_folder_that_cannot_be_written_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/distributions").write_text("")
    with pytest.raises(RunError, match=r"cannot write .*npy"):
        put(tmp_path / "run", SCORED, scored())
