"""Data files as tasks: what their columns run as, what they score, and how malformed ones are refused."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mill.api.errors import DataError, MillError
from mill.api.message import Media, Message
from mill.api.model import MillModel, ModelCapabilities
from mill.api.registry import models
from mill.api.request import GENERATE, LOGLIKELIHOOD, ROLLING, Request
from mill.api.response import Response
from mill.api.task import RenderSettings
from mill.cli.main import run as mill
from mill.frames import evaluate as mill_evaluate
from mill.tasks import data_file
from mill.tasks.load import make_task, select

PLAIN = RenderSettings()


def write(file: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """The same rows in the format of the file's suffix."""
    if file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif file.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(list(rows)), file)
    else:
        with file.open("w", newline="") as handle:
            writer = csv.DictWriter(handle, list(rows[0]))
            writer.writeheader()
            writer.writerows({k: json.dumps(v) if isinstance(v, list) else v for k, v in row.items()} for row in rows)
    return file


def refusal(file: Path, text: str | bytes) -> str:
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(MillError) as caught:
        make_task(str(file)).samples()
    message = str(caught.value)
    assert "\n" not in message and str(file) in message
    return message.replace(str(file), file.name)


FORMATS = pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
CHOICES = [
    {"question": "Sky?", "choices": ["red", "blue"], "answer": "blue", "category": "colour"},
    {"question": "Grass?", "choices": ["green", "pink", "white"], "answer": "green", "category": "colour"},
    {"question": "2+2?", "choices": ["3", "4"], "answer": "4", "category": "sums"},
]


@FORMATS
def test_choices_are_scored_by_log_probability(tmp_path: Path, suffix: str) -> None:
    task = make_task(str(write(tmp_path / f"qa{suffix}", CHOICES)))
    samples = task.samples()
    assert (task.kind, dict(task.metrics)) == (LOGLIKELIHOOD, {"acc": "mean", "acc_norm": "mean"})
    assert [task.target(sample) for sample in samples] == ["blue", "green", "4"]
    requests = task.requests(samples[1], PLAIN)
    assert [(r.context, r.continuation) for r in requests] == [
        ("Question: Grass?\nAnswer:", " green"),
        ("Question: Grass?\nAnswer:", " pink"),
        ("Question: Grass?\nAnswer:", " white"),
    ]
    assert task.score(samples[1], [Response(score=s) for s in (-1.0, -2.0, -3.0)]) == {"acc": 1.0, "acc_norm": 1.0}
    assert task.warnings() == [
        "read as multiple choice by log-probability, answers as texts: 3 rows; "
        "columns used: question, choices, answer, category"
    ]


QUESTIONS = [
    {"question": "Capital of France?", "answer": "Paris", "category": "cities", "source": "x"},
    {"question": "Capital of Peru?", "answer": "Lima", "category": "cities", "source": "y"},
]


@FORMATS
def test_questions_with_answers_are_matched_after_extraction(tmp_path: Path, suffix: str) -> None:
    task = make_task(str(write(tmp_path / f"qa{suffix}", QUESTIONS)))
    first, second = task.samples()
    assert (task.kind, dict(task.metrics)) == (GENERATE, {"exact_match": "mean", "includes": "mean"})
    (request,) = task.requests(first, PLAIN)
    assert (request.context, request.options["until"]) == ("Question: Capital of France?\nAnswer:", ("\nQuestion:",))
    for text, exact, includes in (
        (" Paris.", 1.0, 1.0),
        ("It is Paris", 0.0, 1.0),
        ("Answer: PARIS\n", 1.0, 1.0),
        ("x", 0, 0),
    ):
        values = task.score(first, [Response(text=text)])
        assert (values["exact_match"], values["includes"]) == (exact, includes), text
    assert (task.target(second), task.category(second), second.id) == ("Lima", "cities", "1")
    assert task.warnings() == [
        "read as questions with answers, exact match of 2 texts: 2 rows; "
        "columns used: question, answer, category; ignored: source"
    ]


@pytest.mark.parametrize(
    ("answers", "extractors"),
    [
        (["12", "1,234.5", "-3e2", ".5", "\u22127", "3 x 10^5"], ["number"] * 6),
        (["yes", "No"], ["yes_no"] * 2),
        (["true", "False"], ["true_false"] * 2),
        (["true", "no"], ["line"] * 2),
        (["A", "F"], ["line"] * 2),
        (["12", "twelve", "12 apples", "1,23"], ["number", "line", "line", "line"]),
        (["12", "A"], ["number", "line"]),
        (["12", "yes", "no"], ["number", "yes_no", "yes_no"]),
    ],
)
@FORMATS
def test_how_text_answers_are_extracted_is_the_same_in_every_format(
    tmp_path: Path, suffix: str, answers: list[str], extractors: list[str]
) -> None:
    rows = [{"prompt": f"p{index}", "answer": answer} for index, answer in enumerate(answers)]
    samples = make_task(str(write(tmp_path / f"qa{suffix}", rows))).samples()
    assert [sample.doc["extract"] for sample in samples] == extractors


@pytest.mark.parametrize("free", [[], ["Lima"]])
@pytest.mark.parametrize("five", [5, 5.0, "5", " 5.0 ", "5e0"])
def test_a_gold_answer_that_reads_as_a_number_is_compared_as_one(tmp_path: Path, five: Any, free: list[str]) -> None:
    rows = [{"prompt": f"p{index}", "answer": answer} for index, answer in enumerate([five, *free])]
    task = make_task(str(write(tmp_path / "qa.jsonl", rows)))
    first = task.samples()[0]
    for text, right in (("2 + 3 = 5", 1.0), ("So the answer is 5.00.", 1.0), ("5 or 6", 0.0), ("five", 0.0)):
        assert task.score(first, [Response(text=text)])["exact_match"] == right, text
    how = "1 number, 1 text: 2 rows" if free else "1 number: 1 rows"
    assert task.warnings()[0].startswith(f"read as questions with answers, exact match of {how};")


@pytest.mark.parametrize("column", [{"answer": True}, {"answer": "true"}])
def test_true_is_compared_as_users_write_it(tmp_path: Path, column: dict[str, Any]) -> None:
    task = make_task(str(write(tmp_path / "qa.jsonl", [{"prompt": "Is water wet?", **column}])))
    (sample,) = task.samples()
    for text, right in (("True", 1.0), ("true.", 1.0), ("Yes, it is.", 1.0), ("False", 0.0), ("no", 0.0), ("wet", 0.0)):
        assert task.score(sample, [Response(text=text)])["exact_match"] == right, text
    assert task.target(sample) == column["answer"]


@FORMATS
def test_texts_are_documents(tmp_path: Path, suffix: str) -> None:
    task = make_task(str(write(tmp_path / f"d{suffix}", [{"text": "a b", "url": "u"}, {"text": " ", "url": ""}])))
    (sample,) = task.samples()
    assert (task.kind, sample.doc) == (ROLLING, {"text": "a b"})
    assert task.warnings() == ["read as documents: the perplexity of 1 texts; columns used: text; ignored: url"]


@pytest.mark.parametrize(
    ("choices", "answer", "right", "how"),
    [
        (["red", "blue"], "B", "blue", "letters"),
        (["red", "blue"], "b", "blue", "letters"),
        (["red", "blue"], 0, "red", "indices from 0"),
        (["red", "blue"], "1", "blue", "indices from 0"),
        (["red", "blue"], 1.0, "blue", "indices from 0"),
        (["A", "B"], "B", "B", "texts"),
        ([3, 4], 4, "4", "texts"),
        ('["a|b", "c"]', "c", "c", "texts"),
        ("red | blue", "blue", "blue", "texts"),
    ],
)
def test_the_answer_may_be_a_text_a_letter_or_an_index(
    tmp_path: Path, choices: Any, answer: Any, right: str, how: str
) -> None:
    task = make_task(str(write(tmp_path / "qa.jsonl", [{"question": "?", "choices": choices, "answer": answer}])))
    (sample,) = task.samples()
    assert (task.target(sample), f"answers as {how}:" in task.warnings()[0]) == (right, True)


def test_indices_that_never_are_0_are_reported(tmp_path: Path) -> None:
    rows = [{"question": "?", "choices": ["a", "b", "c"], "answer": index} for index in (1, 2)]
    task = make_task(str(write(tmp_path / "qa.jsonl", rows)))
    assert task.warnings()[1] == "no answer is 0: the index of the first choice is 0, not 1"


def test_other_rows_are_the_examples(tmp_path: Path) -> None:
    task = make_task(str(write(tmp_path / "qa.csv", QUESTIONS)))
    (request,) = task.requests(task.samples()[0], RenderSettings(n_shots=1))
    assert request.context == "Question: Capital of Peru?\nAnswer: Lima\n\nQuestion: Capital of France?\nAnswer:"


def test_a_system_prompt_of_a_row_replaces_that_of_the_run(tmp_path: Path) -> None:
    file = write(tmp_path / "qa.csv", [{"prompt": "a", "system": "Be brief."}, {"prompt": "b", "system": ""}])
    task = make_task(str(file))
    settings = RenderSettings(system_prompt="Run.", apply_chat_template=True)
    contexts = [task.requests(sample, settings)[0].context for sample in task.samples()]
    assert contexts == [
        (Message("system", "Be brief."), Message("user", "a")),
        (Message("system", "Run."), Message("user", "b")),
    ]


@pytest.mark.parametrize("choices", [False, True])
def test_images_are_paths_relative_to_the_file(tmp_path: Path, choices: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "images").mkdir()
    Image.new("RGB", (2, 2), "red").save(tmp_path / "images" / "red.png")
    row = {"question": "Which colour?", "image": "images/red.png", "answer": "red"}
    file = write(tmp_path / "qa.csv", [row | ({"choices": ["red", "blue"]} if choices else {})])
    monkeypatch.chdir("/")
    task = make_task(str(file))
    requests = task.requests(task.samples()[0], PLAIN)
    assert task.modalities == {"text", "image"} and not task.takes_shots
    context = requests[0].context
    assert isinstance(context, tuple)
    (message,) = context
    assert message.media[0].source == tmp_path / "images" / "red.png"
    assert message.parts[1:] == ("Question: Which colour?\nAnswer:",)
    assert [request.continuation for request in requests] == (["red", "blue"] if choices else [""])


@pytest.mark.parametrize(("kind", "names"), [("video", ("a.mp4", "b.gif")), ("audio", ("a.wav", "b.mp3"))])
def test_videos_and_audio_are_shown_before_the_question(tmp_path: Path, kind: str, names: tuple[str, str]) -> None:
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    rows = [{"question": "What?", kind: name} for name in names] + [{"question": "Why?"}]
    task = make_task(str(write(tmp_path / "qa.jsonl", rows)))
    assert task.modalities == {"text", kind} and not task.takes_shots
    assert f"1 of 3 rows have no {kind} and are sent as text" in task.warnings()
    assert f"columns used: question, {kind}" in task.warnings()[0]
    contexts = [task.requests(sample, PLAIN)[0].context for sample in task.samples()]
    for context, name in zip(contexts, names, strict=False):
        assert context == (Message("user", (Media(kind, tmp_path / name), "Question: What?\nAnswer:")),)
    assert contexts[2] == "Question: Why?\nAnswer:"
    (tmp_path / names[0]).write_bytes(b"other")
    digests = [task.samples()[0].doc[f"{kind}_digest"] for task in (task, make_task(str(tmp_path / "qa.jsonl")))]
    assert digests[0] != digests[1]


def test_a_link_to_an_image_outside_of_the_folder_is_refused(tmp_path: Path) -> None:
    Image.new("RGB", (2, 2)).save(tmp_path / "red.png")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "link.png").symlink_to(tmp_path / "red.png")
    (tmp_path / "data" / "loop.png").symlink_to(tmp_path / "data" / "loop.png")
    message = refusal(tmp_path / "data" / "t.csv", "question,image\na,link.png\n")
    assert "row 1: image 'link.png' is outside of the folder" in message
    assert "row 1: image " in refusal(tmp_path / "data" / "t.csv", "question,image\na,loop.png\n")


def test_an_image_in_parquet_is_bytes_and_no_path(tmp_path: Path) -> None:
    file = write(tmp_path / "t.parquet", [{"question": "a", "image": {"bytes": None, "path": "/etc/hostname"}}])
    with pytest.raises(DataError, match=r"t.parquet, row 1: .* has a path and no bytes"):
        make_task(str(file))


@pytest.mark.parametrize("choices", [False, True])
@pytest.mark.parametrize("form", ["bytes", "struct", "null struct", "path"])
def test_rows_without_an_image_among_others_are_text_and_counted(tmp_path: Path, form: str, choices: bool) -> None:
    Image.new("RGB", (2, 2), "red").save(tmp_path / "red.png")
    raw = (tmp_path / "red.png").read_bytes()
    given: dict[str, tuple[Any, Any]] = {
        "bytes": (raw, None),
        "struct": ({"bytes": raw, "path": None}, {"bytes": None, "path": None}),
        "null struct": ({"bytes": raw, "path": None}, None),
        "path": ("red.png", None),
    }
    row = {"question": "Which colour?", "answer": "red"} | ({"choices": ["red", "blue"]} if choices else {})
    file = write(tmp_path / "t.parquet", [row | {"image": image} for image in (*given[form], given[form][1])])
    task = make_task(str(file))
    assert task.modalities == {"text", "image"}
    first, second, third = task.samples()
    assert "2 of 3 rows have no image and are sent as text" in task.warnings()
    context = task.requests(first, PLAIN)[0].context
    assert isinstance(context, tuple) and context[0].media[0].encoded() == raw
    assert {task.requests(sample, PLAIN)[0].context for sample in (second, third)} == {"Question: Which colour?\nAnswer:"}
    write(file, [row | {"image": given[form][1]}])
    assert make_task(str(file)).modalities == {"text"}


def test_an_unreadable_image_is_refused_with_its_row_before_a_model_loads(tmp_path: Path) -> None:
    Image.new("RGB", (64, 64), "red").save(tmp_path / "red.png")
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "cut.png").write_bytes((tmp_path / "red.png").read_bytes()[:60])
    (tmp_path / "empty.png").write_bytes(b"")
    for name in ("text.png", "empty.png"):
        message = refusal(tmp_path / "t.csv", f"question,image\na,red.png\nb,{name}\n")
        assert "t.csv, row 2: the image" in message and "cannot be read: Pillow does not know its format" in message
    assert "t.csv, row 2: the image" in refusal(tmp_path / "t.csv", "question,image\na,red.png\nb,cut.png\n")


# Malformed files

CSV = {
    "no question": ("Question,answer\na,b\n", "has the columns Question, answer: a table needs the column question "
                    "or prompt, or text for documents; did you mean question for 'Question'?"),
    "nothing known": ("a,b\n1,2\n", "has the columns a, b: a table needs the column question or prompt, or text"),
    "semicolons": ("question;answer\na;b, c\n", "t.csv: columns are separated by ;: write commas"),
    "python list": ("question,choices,answer\na,\"['x', 'y']\",x\n", 'write ["x", "y"], with double quotes, or x|y'),
    "letter columns": ("question,A,B,C,D,answer\na,1,2,3,4,B\n", "did you mean choice_a, choice_b, ... for 'A'?"),
    "letters": ("question,answer\na,A\nb,E\n", "the answers are letters, but there are no choices: add a column choices, or "
                "choice_a, choice_b, ...; where the prompts list them, add a column extract with the value choice"),
    "choices twice": ("question,choices,choice_a,answer\na,x|y,x,x\n", "has both choices and choice_a: keep one"),
    "no rows": ("question,answer\n", "has no rows"),
    "empty answer": ("question,answer\na,b\nc,\n", "row 2: answer is empty; leave the column out for prompts without"),
    "punctuation": ("question,answer\na,b\nc,?!\n", "row 2: the answer '?!' cannot be extracted by line; "
                    "give one line with a letter or a digit in it"),
    "column twice": ("question,answer,answer\na,b,c\n", "has the column 'answer' twice"),
    "open quote": ('question,answer\na,b\n"c,d\n', "row 2 (line 3): unexpected end of data"),
    "not an image": ("question,image\na,/etc/passwd\n", "row 1: image '/etc/passwd' does not have the suffix of"),
    "image above": ("question,image\na,../y.png\n", "row 1: image '../y.png' is outside of the folder of the file"),
    "image address": ("question,image\na,https://x/y.png\n", "row 1: image 'https://x/y.png' is an address; give a path "
                      "relative to the file"),
    "extract": ("prompt,extract\na,nmber\n", "unknown extractor in t.csv, row 1 'nmber'; did you mean number"),
    "max_tokens": ("prompt,max_tokens\na,0\n", "row 1: max_tokens is '0', not a count of at least 1"),
    "choices without answer": ("question,choices\na,x|y\n", "row 1: answer is missing, and multiple choice needs one"),
    "choice twice": ("question,choices,answer\na,x|x,x\n", "row 1 has the choice 'x' twice"),
    "other answer": ("question,choices,answer\na,x|y,z\n", "row 1: the answer 'z' is neither the text nor the letter nor "
                     "the index (from 0) of a choice; the choices are x | y"),
    "mixed answers": ("question,choices,answer\na,x|y,x\nb,x|y,B\n", "row 2: the answer 'B' is not among the texts of the "
                      "choices, as the other answers are; the choices are x | y"),
    "two readings": ("question,choices,answer\na,1|2,1\n", "answers can be read as texts or as indices from 0, which "
                     "disagree in row 1 ('1'): write the text of the choice"),
}  # fmt: skip


def test_letters_without_choices_need_extract(tmp_path: Path) -> None:
    file = write(tmp_path / "t.csv", [{"prompt": "A. x\nB. y\n", "answer": "B", "extract": "choice"}])
    task = make_task(str(file))
    assert task.score(task.samples()[0], [Response(text="B")])["exact_match"] == 1.0


def test_ordinary_columns_are_ignored_and_reported(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    names = "question_id,idx,answer_type,image_id,extra,label,explanation,subject,tokens,test,context,a"
    file.write_text(f"question,answer,{names}\nq,b{',x' * 12}\n")
    assert make_task(str(file)).warnings()[0].endswith(f"ignored: {names.replace(',', ', ')}")
    file.write_text(",question\n0,a\n")
    assert make_task(str(file)).warnings()[0].endswith("ignored: (unnamed)")
    file.write_text("text,label,target,title\nq,b,c,d\n")
    assert make_task(str(file)).warnings()[0].endswith("ignored: label, target, title")


@pytest.mark.parametrize(("text", "message"), CSV.values(), ids=CSV)
def test_a_malformed_csv_is_one_line_with_file_and_row(tmp_path: Path, text: str, message: str) -> None:
    assert message in refusal(tmp_path / "t.csv", text)


JSONL = {
    "number": ('{"question": 5}\n', "t.jsonl, row 1: question is a int, not text"),
    "without": ('{"question": "a"}\n{"answer": "b"}\n', "t.jsonl, row 2 has no question; it has answer"),
    "answer": ('{"question": "a", "choices": ["x", "y"], "answer": true}\n', "t.jsonl, row 1: the answer 'True' is neither"),
    "extract": ('{"question": "a", "answer": "b c", "extract": ["x"]}\n', "unknown extractor in t.jsonl, row 1"),
    "nan": ('{"question": "a", "answer": Infinity}\n', "t.jsonl, row 1: the answer 'inf' cannot be extracted by number"),
    "not json": ('{"question": "a"}\n{"question": \n', "t.jsonl, line 2 is not JSON"),
    "deep": ("[" * 100_000 + "\n", "t.jsonl"),
}


@pytest.mark.parametrize(("text", "message"), JSONL.values(), ids=JSONL)
def test_a_malformed_jsonl_is_one_line_with_file_and_row(tmp_path: Path, text: str, message: str) -> None:
    assert message in refusal(tmp_path / "t.jsonl", text)


def test_a_byte_order_mark_line_ends_of_windows_and_quotes_are_read(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_bytes('\ufeffquestion,answer\r\n"He said ""hi"", twice",a\r\n"two\r\nlines","b, c"\r\n\r\n'.encode())
    rows = [(sample.doc["question"], sample.doc["answer"]) for sample in make_task(str(file)).samples()]
    assert rows == [('He said "hi", twice', "a"), ("two\r\nlines", "b, c")]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".txt"])
def test_a_file_that_is_too_large_or_no_file_is_refused(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"prompt": "x" * 3 * 2**20}]
    file = write(tmp_path / f"t{suffix}", rows) if suffix != ".txt" else tmp_path / "t.txt"
    if suffix == ".txt":
        file.write_text("x" * 3 * 2**20)
    monkeypatch.setattr(data_file, "MOST_BYTES", 2**20)
    with pytest.raises(DataError, match=r"t\.\w+ has 3 MiB, and at most 1 MiB are read: split it"):
        make_task(str(file))
    (tmp_path / f"folder{suffix}").mkdir()
    with pytest.raises(DataError, match="is not a regular file"):
        make_task(str(tmp_path / f"folder{suffix}"))


def test_binary_text_columns_of_parquet_are_decoded_or_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    row = {"question": b"Sky?", "answer": "é".encode(), "category": b"c", "other": b"\xff"}
    task = make_task(str(write(file, [row, row | {"answer": b"b"}])))
    (first, _) = task.samples()
    assert (task.target(first), task.category(first)) == ("é", "c")
    assert task.requests(first, PLAIN)[0].text == "Question: Sky?\nAnswer:"
    write(file, [{"question": "a", "choices": [b"x", b"y"], "answer": b"y"}])
    assert make_task(str(file)).target(make_task(str(file)).samples()[0]) == "y"
    write(file, [{"question": "a", "answer": b"b"}, {"question": "a", "answer": b"\xff"}])
    with pytest.raises(DataError, match=r"t.parquet, row 2: answer is binary and not UTF-8 text: invalid start byte$"):
        make_task(str(file))


@FORMATS
def test_too_many_columns_are_refused(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_file, "MOST_COLUMNS", 2)
    monkeypatch.setattr("mill.tasks.data.MOST_COLUMNS", 2)
    with pytest.raises(DataError, match="has 3 columns: at most 2 are read"):
        make_task(str(write(tmp_path / f"t{suffix}", [{"question": "a", "x": "b", "y": "c"}])))


def test_too_many_rows_of_parquet_are_refused_before_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "t.parquet", [{"prompt": "x"}] * 3)
    monkeypatch.setattr(data_file, "MOST_ROWS", 2)
    monkeypatch.setattr(data_file, "read_rows", None)
    with pytest.raises(DataError, match="has 3 rows, and at most 2 are read: split it"):
        make_task(str(file))


@pytest.mark.parametrize("is_dictionary", [False, True])
def test_a_long_text_that_repeats_in_parquet_is_bounded(
    tmp_path: Path, is_dictionary: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file, texts = tmp_path / "t.parquet", pa.array(["x" * 10_000] * 1000)
    pq.write_table(pa.table({"prompt": texts.dictionary_encode() if is_dictionary else texts}), file)
    assert len(make_task(str(file)).samples()) == 1000
    assert file.stat().st_size < 50_000
    monkeypatch.setattr("mill.tasks.data.MOST_BYTES", 2**20)
    with pytest.raises(DataError, match=r"t.parquet has more than 1 MiB when it is unpacked: split it"):
        make_task(str(file))


# Whole runs


class Scripted(MillModel):
    """Answers each prompt from a table; the earlier in the alphabet a continuation is, the likelier."""

    capabilities = ModelCapabilities(supports_logprobs=True, supports_chat_template=True)
    model_name = "scripted"
    texts: dict[str, str] = {}

    def _generate_batch(self, batch: list[Request], gen_kwargs: dict[str, Any]) -> list[str]:
        return [next((text for part, text in self.texts.items() if part in request.text), "?") for request in batch]

    def _loglikelihood_batch(self, batch: list[Request]) -> list[tuple[float, bool]]:
        return [(-float(ord(request.continuation.strip()[0])), False) for request in batch]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> type[Scripted]:
    monkeypatch.setattr(Scripted, "texts", {})
    models.add("scripted", Scripted)
    return Scripted


def results(out: Path) -> dict[str, Any]:
    (file,) = out.glob("*/*/results.json")
    (entry,) = json.loads(file.read_text())["tasks"].values()
    return dict(entry)


def test_a_run_scores_a_file_and_each_category(
    tmp_path: Path, scripted: type[Scripted], capsys: pytest.CaptureFixture[str]
) -> None:
    scripted.texts = {"France": " Paris", "Peru": "Cusco", "2+2": "the answer is four"}
    rows = [*({k: v for k, v in row.items() if k != "source"} for row in QUESTIONS),
            {"question": "2+2?", "answer": "four", "category": "sums"}]  # fmt: skip
    file, out = write(tmp_path / "qa.csv", rows), tmp_path / "out"
    assert mill(["eval", "scripted", str(file), "--dry_run"]) == 0
    line = "read as questions with answers, exact match of 3 texts: 3 rows; columns used: question, answer, category"
    assert line in capsys.readouterr().out
    assert mill(["eval", "scripted", str(file), "--output_dir", str(out), "--quiet"]) == 0
    assert line in (shown := capsys.readouterr().out) and "- cities" in shown and "- sums" in shown
    entry = results(out)
    assert {name: metric["value"] for name, metric in entry["metrics"].items()} == {
        "exact_match": pytest.approx(1 / 3),
        "includes": pytest.approx(2 / 3),
    }
    categories = {name: (m["exact_match"]["value"], m["exact_match"]["n"]) for name, m in entry["categories"].items()}
    assert categories == {"cities": (0.5, 2), "sums": (0.0, 1)}
    (run,) = out.glob("*/*")
    assert mill(["score", str(run)]) == 0
    assert results(out)["categories"] == entry["categories"]


def test_data_that_changed_replace_the_earlier_result_with_a_warning(
    tmp_path: Path, scripted: type[Scripted], capsys: pytest.CaptureFixture[str]
) -> None:
    scripted.texts = {"Sky?": "blue", "Grass?": "green", "Snow?": "grey"}
    file, out = tmp_path / "qa.csv", tmp_path / "out"
    command = ["eval", "scripted", str(file), "--output_dir", str(out), "--quiet"]

    def run(answers: dict[str, str], *options: str) -> tuple[float, int, str]:
        write(file, [{"question": question, "answer": answer} for question, answer in answers.items()])
        assert mill([*command, *options]) == 0
        entry = results(out)
        return entry["metrics"]["exact_match"]["value"], entry["n"], capsys.readouterr().err

    first = {"Sky?": "blue", "Grass?": "green", "Sun?": "yellow"}
    assert run(first) == (2 / 3, 3, "")
    assert run(first, "--limit", "1") == (2 / 3, 3, "")
    # One question stays, with another gold answer; one is new. Fewer samples of other data are no part of the earlier ones.
    value, n, warning = run({"Sky?": "grey", "Snow?": "grey"}, "--limit", "2")
    assert (value, n, warning.count("\n")) == (0.5, 2, 1)
    assert f"{file}: the data changed since the earlier result over 3 samples, which this run replaces" in warning
    (samples,) = out.glob("*/*/samples/*.jsonl")
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    assert [(row["prompt"].split()[1], row["target"], row["response"]) for row in rows] == [
        ("Sky?", "grey", "blue"),
        ("Snow?", "grey", "grey"),
    ]
    assert run({"Sky?": "grey", "Snow?": "grey"}) == (0.5, 2, "")


def test_a_model_without_log_probabilities_generates_the_letter(
    tmp_path: Path, scripted: type[Scripted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripted, "capabilities", ModelCapabilities(supports_chat_template=True))
    scripted.texts = {"Sky?": "So the answer is (B).", "Grass?": "the answer is C", "2+2?": "The answer is **B**"}
    file, out = write(tmp_path / "qa.csv", CHOICES), tmp_path / "out"
    assert mill(["eval", "scripted", str(file), "--output_dir", str(out), "--quiet"]) == 0
    entry = results(out)
    assert entry["metrics"]["exact_match"]["value"] == pytest.approx(2 / 3)
    assert entry["warnings"][0] == f"{file}#letters runs instead of {file}, which this model cannot serve"
    assert entry["warnings"][1].startswith("read as multiple choice by generated letter, answers as texts: 3 rows")
    (run,) = out.glob("*/*")
    (row, *_) = [json.loads(line) for line in next((run / "samples").iterdir()).read_text().splitlines()]
    assert row["prompt"].startswith("Question: Sky?\nA. red\nB. blue\nEnd with") and row["extracted"] == "B"
    assert mill(["score", str(run)]) == 0


def test_free_text_answers_are_judged(tmp_path: Path, scripted: type[Scripted], capsys: pytest.CaptureFixture[str]) -> None:
    class JudgeModel(Scripted):
        model_name = "judge"

        def _generate_batch(self, batch: list[Request], gen_kwargs: dict[str, Any]) -> list[str]:
            return [f"VERDICT: {'CORRECT' if 'Because it' in request.text else 'INCORRECT'}" for request in batch]

    models.add("judge_model", JudgeModel)
    scripted.texts = {"Why?": "Because it is.", "How?": "No idea"}
    rows = [{"question": "Why?", "answer": "It is.\nSo it is."}, {"question": "How?", "answer": "Like this.\nOr that."}]
    file, out = write(tmp_path / "qa.jsonl", rows), tmp_path / "out"
    assert mill(["eval", "scripted", str(file), "--judge", "judge_model", "--output_dir", str(out), "--quiet"]) == 0
    entry = results(out)
    assert {name: metric["value"] for name, metric in entry["metrics"].items()} == {
        "answered": 1.0,
        "judge": 0.5,
        "judge_read": 1.0,
    }
    assert "2 answers span several lines" in capsys.readouterr().out


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone\.csv does not exist$"):
        select([str(tmp_path / "gone.csv")])
    with pytest.raises(DataError, match=r"gone\.txt does not exist$"):
        select([str(tmp_path / "gone.txt")])


@pytest.mark.parametrize("name", ["my,task.csv", "a*.csv"])
def test_a_file_may_have_commas_and_the_signs_of_patterns_in_its_name(
    tmp_path: Path, scripted: type[Scripted], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert mill(["eval", "scripted", name]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1 and ("patterns are for tasks, so name each file" in message or "unknown task" in message)
    write(tmp_path / name, CHOICES)
    write(tmp_path / "abc.csv", CHOICES[:1])
    assert mill(["eval", "scripted", name, "--output_dir", "out", "--quiet"]) == 0
    assert results(tmp_path / "out")["task"] == name
    assert mill(["schedule", "scripted", name, "--dry_run", "--output_dir", "out"]) == 0
    assert name in capsys.readouterr().out
    assert mill_evaluate("scripted", name, output_dir="out").outcome.tasks[0].task == name


def test_another_kind_of_file_and_a_folder_name_the_suffixes_of_data_files(tmp_path: Path) -> None:
    for name in ("t.tsv", "t.json", str(tmp_path)):
        with pytest.raises(MillError, match=r"^unknown task '.*'; data files end in \.txt, \.jsonl, \.csv, \.parquet$"):
            select([name])
    with pytest.raises(MillError, match=r"see `mill ls tasks`$"):
        select(["x" * 5000])


def test_prompts_without_answers_are_a_suite(tmp_path: Path) -> None:
    task = make_task(
        str(write(tmp_path / "p.csv", [{"prompt": "one", "max_tokens": "7"}, {"prompt": "two", "max_tokens": ""}]))
    )
    first, second = task.samples()
    assert (dict(task.metrics), task.judge) == ({"answered": "mean"}, None)
    assert [task.requests(one, PLAIN)[0].options["max_gen_toks"] for one in (first, second)] == [7, 256]
    assert task.score(first, [Response(text=" ")])["answered"] == 0.0
    assert task.warnings() == ["read as prompts without answers: 2 rows; columns used: prompt, max_tokens"]


def test_a_choice_may_have_its_own_column(tmp_path: Path) -> None:
    file = tmp_path / "qa.csv"
    file.write_text("question,choice_a,choice_b,choice_c,answer\nSky?,red,blue,,B\nSum?,1,2,3,C\n")
    task = make_task(str(file))
    assert [sample.doc["choices"] for sample in task.samples()] == [["red", "blue"], ["1", "2", "3"]]
    assert [task.target(sample) for sample in task.samples()] == ["blue", "3"]


def test_decimals_of_parquet_are_numbers(tmp_path: Path) -> None:
    rows = [{"question": "a", "answer": Decimal("1.50")}, {"question": "b", "answer": Decimal("2.00")}]
    task = make_task(str(write(tmp_path / "t.parquet", rows)))
    assert task.warnings()[0].startswith("read as questions with answers, exact match of 2 numbers")
    assert task.score(task.samples()[0], [Response(text="It is 1.5.")])["exact_match"] == 1.0
    rows = [{"question": "a", "choices": ["x", "y"], "answer": Decimal("1")}]
    assert make_task(str(write(tmp_path / "c.parquet", rows))).samples()[0].doc["answer_index"] == 1
