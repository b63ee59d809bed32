"""Samples as lines of JSON: every reader takes them, whatever a model or the data holds."""

from __future__ import annotations

import io
import json
import math
import wave
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mill.api.message import AUDIO, IMAGE, Media
from mill.api.registry import models, tasks
from mill.api.response import Response
from mill.api.task import Sample
from mill.cli.main import run as mill
from mill.store.folder import RunFolder
from mill.store.sample_row import line_of
from mill.store.samples import RunSample, read_samples, store_unnamed, write_samples
from mill.support.files import json_text
from tests.runs.faults import TOY

LONE = "a \ud800 b \\ud800 \\\\ \udfff"


def scored(text: str, doc: Any = None, number: int = 0) -> RunSample:
    doc = {"question": text} if doc is None else doc
    return RunSample(
        Sample(str(number), doc), text, text, [], [["k"]], [[Response(text=text)]], values={"exact_match": [1.0]}
    )


def write(folder: Path, *samples: RunSample) -> Path:
    run = RunFolder(folder)
    write_samples(run, "m", "t", samples)
    return run.samples_file("t")


def readers(file: Path) -> list[list[str]]:
    """The prompts of a file as three programs read them."""
    file.read_bytes().decode("utf-8")
    plain = [json.loads(line)["prompt"] for line in file.read_bytes().splitlines()]
    framed = list(pd.read_json(file, lines=True, dtype=False)["prompt"])
    rows = duckdb.execute(f"select prompt from read_json_auto('{file}', format='newline_delimited')").fetchall()
    return [plain, framed, [row[0] for row in rows]]


def test_lone_surrogates_are_read_by_every_reader_and_come_back_as_they_were(tmp_path: Path) -> None:
    file = write(tmp_path, scored("plain \\ text"), scored(LONE, number=1))
    shown = r"a \ud800 b \\ud800 \\\\ \udfff"
    assert readers(file) == [["plain \\ text", shown]] * 3
    first, second = read_samples(file)
    assert first.prompt == "plain \\ text"
    assert (second.prompt, second.sample.doc, second.responses[0][0].text) == (LONE, {"question": LONE}, LONE)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text("aé\n") | st.just({1, 2}) | st.binary(max_size=2),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text("ab") | st.integers(), inner),
)


@given(VALUES)
def test_a_row_is_what_json_text_makes_of_it_whatever_is_in_it(value: Any) -> None:
    try:
        expected = json_text({"doc": value})
    except (TypeError, ValueError) as error:
        with pytest.raises(type(error)):
            line_of({"doc": value})
    else:
        assert json.loads(line_of({"doc": value})) == json.loads(expected)


@pytest.mark.parametrize("where", ["answers", "data", "model"])
def test_a_run_with_lone_surrogates_is_read_by_every_command(
    toy_here: Path, tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    toy, out = models.get("toy"), tmp_path / "out"
    if where == "answers":
        monkeypatch.setattr(
            toy, "_generate_batch", lambda self, batch, options: [Response(text=f"{LONE} {r.key}") for r in batch]
        )
    if where == "data":
        samples = [Sample(str(i), {"question": f"{LONE} {i}", "answer": LONE}) for i in range(3)]
        tasks.add("toy_gen", type("Odd", (tasks.get("toy_gen"),), {"samples": lambda self: samples}))
    if where == "model":
        monkeypatch.setattr(toy, "model_name", "m\ud800")
    options = ["--output_dir", str(out), "--limit", "3", "--quiet"]
    assert mill(["eval", "toy[path=a]", "toy_gen", *options]) == 0
    (run,) = out.glob("*/*")
    assert len(json.loads((run / "results.json").read_bytes())["tasks"]) == 1
    for file in out.rglob("*.json*"):
        file.read_bytes().decode("utf-8")
    assert readers(run / "samples/toy_gen.jsonl")
    assert mill(["score", str(run), "--task_paths", str(TOY)]) == 0
    assert mill(["compare", "--runs", str(run), str(run), "--output_dir", str(out), "--task_paths", str(TOY)]) == 0
    for form in ("json", "csv", "md"):
        assert mill(["collect", "--output_dir", str(out), "--out", str(tmp_path / f"scores.{form}")]) == 0
        (tmp_path / f"scores.{form}").read_bytes().decode("utf-8")
        capfdbinary.readouterr()
        assert mill(["collect", "--output_dir", str(out), "--format", form]) == 0
        capfdbinary.readouterr().out.decode("utf-8")
    json.loads((tmp_path / "scores.json").read_bytes())
    for argv in (["collect", "--output_dir", str(out)], ["ls", "runs", "--output_dir", str(out)]):
        assert mill(argv) == 0
    capfdbinary.readouterr()
    assert mill(["report", str(out), "--format", "json", "--output", "-"]) == 0
    json.loads(capfdbinary.readouterr().out)


def test_a_sample_is_one_flat_row(toy_here: Path, tmp_path: Path) -> None:
    """Two tasks of different shape in one query, as a reader of results would write it."""
    rows = "".join(f"{letter},answer 1,{'x' if letter < 'd' else 'y'}\n" for letter in "abcdefghijkl")
    (tmp_path / "qa.csv").write_text("question,answer,category\n" + rows)
    argv = ["eval", "toy[path=a]", f"{tmp_path / 'qa.csv'},toy_choice,toy_text,toy_dialog", "--limit", "12", "--quiet"]
    assert mill([*argv, "--output_dir", str(tmp_path / "out")]) == 0
    (folder,) = (tmp_path / "out").glob("*/*/samples")
    (own,) = folder.glob("*qa.csv*")
    frame = pd.read_json(own, lines=True)
    right = (frame["response"] == frame["target"]).astype(float)
    assert list(frame["exact_match"]) == list(right)
    assert list(frame["extracted"]) == list(frame["response"])
    assert list(frame["prompt"]) == [f"Question: {letter}\nAnswer:" for letter in "abcdefghijkl"]
    assert 0 < sum(right) < 12
    assert list(frame["prompt_tokens"]) == [3] * 12 and list(frame["output_tokens"]) == [2] * 12
    means = duckdb.execute(f"select category, avg(exact_match) from '{folder}/*.jsonl' group by 1 order by 1").fetchall()
    assert means == [("x", right[:3].mean()), ("y", pytest.approx(right[3:].mean())), (None, None)]
    chosen_rows = duckdb.execute(
        f"select chosen, correct, acc, choices, choice_logprobs from '{folder}/toy_choice.jsonl'"
    ).fetchall()
    for chosen, correct, acc, choices, scores in chosen_rows:
        assert chosen == choices[scores.index(max(scores))] and correct == (acc == 1.0)
    (perplexity,) = duckdb.execute(f"select word_perplexity from '{folder}/toy_text.jsonl' where id = '0'").fetchall()[0]
    line = json.loads((folder / "toy_text.jsonl").read_text().splitlines()[0])
    assert perplexity == pytest.approx(math.exp(-line["responses"][0][0]["score"] / 100))
    dialog = json.loads((folder / "toy_dialog.jsonl").read_text().splitlines()[0])
    assert [turn["role"] for turn in json.loads(dialog["prompt"])][-3:] == ["user", "assistant", "user"]
    assert dialog["response"] == dialog["responses"][0][-1]["text"]


def test_the_prompt_is_what_the_model_got(tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "qa.csv").write_text("prompt,answer,system\nwhat is the answer ?,42,Be brief.\n")
    spec, out = f"hf[path={tiny_model},dtype=float32,device_map=cpu]", tmp_path / "out"
    argv = ["eval", spec, str(tmp_path / "qa.csv"), "--apply_chat_template", "--output_dir", str(out), "--quiet"]
    assert mill([*argv, "--gen_kwargs", "max_gen_toks=4"]) == 0
    (file,) = out.glob("*/*/samples/*.jsonl")
    row = json.loads(file.read_text())
    assert row["prompt"] == "<|system|>Be brief.</s><|user|>what is the answer ?</s><|assistant|>"
    assert row["unrendered"] == "<system> Be brief.\n<user> what is the answer ?"
    assert mill(["score", str(file.parent.parent)]) == 0
    assert json.loads(file.read_text()) == row


def test_target_and_extracted_of_multiple_choice_are_equal_where_acc_is_1(toy_here: Path, tmp_path: Path) -> None:
    rows = [{"question": f"q{n}", "choices": ["7", "8", "9 "], "answer": n % 3} for n in range(12)]
    (tmp_path / "qa.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    argv = ["eval", "toy[path=a]", str(tmp_path / "qa.jsonl"), "--output_dir", str(tmp_path / "out"), "--quiet"]
    assert mill(argv) == 0
    frame = pd.read_json(next((tmp_path / "out").glob("*/*/samples/*.jsonl")), lines=True, dtype=False)
    assert set(frame["target"]) == {"7", "8", "9 "} and 0 < sum(frame["acc"]) < 12
    assert list(frame["target"] == frame["extracted"]) == list(frame["acc"] == 1.0)
    assert list(frame["chosen"]) == list(frame["extracted"])


def test_scoring_again_spells_targets_as_the_task_does_now(toy_here: Path, tmp_path: Path) -> None:
    (tmp_path / "qa.csv").write_text("question,choices,answer\na,x|y,x\nb,x|y,y\n")
    argv = ["eval", "toy[path=a]", str(tmp_path / "qa.csv"), "--output_dir", str(tmp_path / "out"), "--quiet"]
    assert mill(argv) == 0
    (file,) = (tmp_path / "out").glob("*/*/samples/*.jsonl")
    written = file.read_text()
    rows = [json.loads(line) for line in written.splitlines()]
    older = [{**row, "target": row["choices"].index(row["target"])} for row in rows]  # as version 0.1 wrote it
    file.write_text("".join(f"{json.dumps(row)}\n" for row in older))
    assert mill(["score", str(file.parent.parent)]) == 0
    assert [json.loads(line)["target"] for line in file.read_text().splitlines()] == ["x", "y"]


def test_a_photo_is_stored_upright_and_stereo_as_the_mean_of_its_channels(tmp_path: Path) -> None:
    """What `mill view` shows of media without a file is what the model got."""
    stored, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6  # the camera's left is the top
    photo = Image.new("RGB", (4, 2), "blue")
    photo.paste("red", (0, 0, 2, 2))
    photo.save(stored, "PNG", exif=exif)
    image = Media(IMAGE, Image.open(stored))
    sound = Media(AUDIO, np.array([[0.5, 0.0], [0.0, 0.5], [-0.5, -0.5]], dtype=np.float32), 8_000)
    undated = Media(AUDIO, np.zeros(3, dtype=np.float32))
    store_unnamed(RunFolder(tmp_path), [image, sound, undated])
    shown = Image.open(tmp_path / "media" / image.digest)
    assert (shown.size, shown.getpixel((0, 0)), shown.getpixel((1, 3))) == ((2, 4), (255, 0, 0), (0, 0, 255))
    with wave.open(str(tmp_path / "media" / sound.digest)) as file:
        assert (file.getframerate(), file.getnchannels()) == (8_000, 1)
        assert np.frombuffer(file.readframes(3), dtype="<i2").tolist() == [8191, 8191, -16383]
    assert len(list((tmp_path / "media").iterdir())) == 2
