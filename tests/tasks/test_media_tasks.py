"""Tasks with images and audio: MMMU-Pro, ESC-50, Flickr30k and the drawn shapes, from made-up rows."""

from __future__ import annotations

import json
import random
import wave
from pathlib import Path
from typing import Any

import pytest

from mill.api.message import Media
from mill.api.request import GENERATE, LOGLIKELIHOOD, ZERO_SHOT
from mill.api.response import Response
from mill.api.task import RenderSettings
from mill.tasks.load import make_task, select
from mill.tasks.shapes import COLOURS, PAIRS, SHAPES, UNSEEN, class_name, draw
from tests.plans import prepare

PLAIN = RenderSettings()
DEMO_CLIP = "mill/models/configs/clip/shapes.py"


def draw_image(file: Path, colour: str = "red", shape: str = "circle") -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    draw(colour, shape, random.Random(str(file))).save(file)
    return str(file)


def mmmu_rows(root: Path) -> list[dict[str, Any]]:
    one, two = draw_image(root / "a.png"), draw_image(root / "b.png", "blue", "star")
    return [
        {
            "id": "test_Art_1",
            "question": "Compare <image 1> with <image 2>: which is older?",
            "options": "['the first', 'the second', \"neither's age is known\"]",
            "answer": "B",
            "image_1": one,
            "image_2": two,
        },
        {"id": "test_Art_2", "question": "<image 1> What is it?", "options": ["a", "b"], "answer": "A", "image_1": one},
    ]


def write_mmmu(root: Path, rows: list[dict[str, Any]]) -> None:
    file = root / "MMMU/MMMU_Pro/standard (10 options)/test.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_mmmu_pro_puts_images_where_the_text_names_them(root: Path) -> None:
    write_mmmu(root, mmmu_rows(root))
    task = make_task("mmmu_pro")
    first = task.samples()[0]
    (request,) = task.requests(first, PLAIN)
    assert isinstance(request.context, tuple)
    (message,) = request.context
    parts = message.parts
    assert [part.name if isinstance(part, Media) else "text" for part in parts] == [
        "text",
        str(root / "a.png"),
        "text",
        str(root / "b.png"),
        "text",
    ]
    assert parts[0] == "Compare " and parts[2] == " with "
    assert isinstance(parts[4], str) and "A. the first\nB. the second\nC. neither's age is known" in parts[4]
    assert first.id == "test_Art_1" and task.target(first) == "B" and task.kind == GENERATE


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("The second is older.\nAnswer: B", 1.0),
        ("Answer: A? No, wait.\nAnswer: (B)", 1.0),
        ("Answer: A picture is not enough. Answer: B", 1.0),
        ("B", 0.0),
        ("", 0.0),
    ],
)
def test_mmmu_pro_reads_the_last_letter_that_is_called_the_answer(root: Path, text: str, value: float) -> None:
    write_mmmu(root, mmmu_rows(root))
    task = make_task("mmmu_pro")
    first = task.samples()[0]
    assert task.score(first, [Response(text=text)]) == {"exact_match": value}
    assert (task.extracted(first, [Response(text=text)]) == task.target(first)) is (value == 1.0)


def test_mmmu_pro_clip_ranks_the_choices_by_the_first_image(root: Path) -> None:
    write_mmmu(root, mmmu_rows(root))
    task = make_task("mmmu_pro_clip")
    first = task.samples()[0]
    (request,) = task.requests(first, PLAIN)
    assert request.kind == ZERO_SHOT and [media.name for media in request.media] == [str(root / "a.png")]
    assert request.labels.names == ("A", "B", "C") and request.labels.templates == ("{c}",)
    assert request.labels.texts[1] == "Compare  with : which is older? the second"
    assert task.score(first, [Response(label="B")]) == {"acc": 1.0}


def test_mmmu_pro_runs_its_ranking_on_an_image_text_model(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("open_clip")
    write_mmmu(root, mmmu_rows(root))
    run = prepare(DEMO_CLIP, select(["mmmu_pro"]), PLAIN, output_dir=tmp_path / "out")
    outcome = run.execute(quiet=True)
    assert [plan.task.name for plan in run.tasks] == ["mmmu_pro_clip"] and outcome.errors == 0
    assert any("texts are longer than the context of 12 tokens" in warning for warning in outcome.warnings)


def test_esc50_offers_audio_from_label_folders_as_choices(root: Path) -> None:
    for name in ("dog", "sea_waves"):
        file = root / f"ashraq/esc50/default/test/{name}/1.wav"
        file.parent.mkdir(parents=True)
        with wave.open(str(file), "wb") as audio:
            audio.setnchannels(1)
            audio.setsampwidth(2)
            audio.setframerate(8000)
            audio.writeframes(b"\0\1" * 800)
    task = make_task("esc50")
    dog, waves = task.samples()
    requests = task.requests(waves, PLAIN)
    assert [request.kind for request in requests] == [LOGLIKELIHOOD] * 4 and task.modalities == {"audio"}
    assert [media.kind for media in requests[0].media] == ["audio"]
    assert "sea waves" in requests[0].text and task.target(waves).endswith(". sea waves")
    assert task.target(dog)[3:] == "dog"


def write_flickr(root: Path, pairs: list[tuple[str, str]]) -> None:
    file = root / "nlphuji/flickr_1k_test_image_text_retrieval/test.jsonl"
    file.parent.mkdir(parents=True)
    rows = [
        {
            "image": draw_image(root / f"{colour}-{shape}.png", colour, shape),
            "caption": [f"a picture of a {class_name(colour, shape)}.", f"a {class_name(colour, shape)}."],
        }
        for colour, shape in pairs
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_retrieval_both_ways_on_the_model_that_comes_along(root: Path, tmp_path: Path) -> None:
    pytest.importorskip("open_clip")
    pairs = [(colour, shape) for colour in ("red", "green", "blue", "yellow") for shape in ("circle", "star", "bar", "ring")]
    write_flickr(root, pairs)
    run = prepare(DEMO_CLIP, select(["flickr30k_i2t", "flickr30k_t2i"]), PLAIN, output_dir=tmp_path / "out")
    to_text, to_image = run.execute(quiet=True).tasks
    assert (to_text.n, to_image.n, to_text.errors, to_image.errors) == (16, 32, 0, 0)
    for result in (to_text, to_image):
        assert result.metrics["recall@1"].value > 0.8 and result.metrics["recall@10"].value == 1.0


def test_shapes_are_the_same_in_every_process_and_cover_every_pair() -> None:
    task, again = make_task("shapes"), make_task("shapes")
    assert len(task.samples()) == 8 * len(PAIRS) and len(PAIRS) == len(COLOURS) * len(SHAPES)
    one, other = (made.requests(made.samples()[5], PLAIN)[0] for made in (task, again))
    assert one.content_hash == other.content_hash
    assert one.content_hash != task.requests(task.samples()[5 + len(PAIRS)], PLAIN)[0].content_hash
    assert {task.target(sample) for sample in make_task("shapes_unseen").samples()} == {class_name(*pair) for pair in UNSEEN}


def test_the_model_that_comes_along_knows_shapes_and_pairs_it_never_saw(tmp_path: Path) -> None:
    pytest.importorskip("open_clip")
    run = prepare(DEMO_CLIP, select(["shapes", "shapes_unseen"]), PLAIN, output_dir=tmp_path)
    seen, unseen = run.execute(quiet=True).tasks
    assert seen.metrics["acc"].value > 0.95 and unseen.metrics["acc"].value > 0.8  # chance is 0.016
    assert seen.errors == unseen.errors == 0
