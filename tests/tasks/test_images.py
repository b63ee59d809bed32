"""Images with classes: from made-up data in every shape to requests, scores and small files, whatever the model can."""

from __future__ import annotations

import base64
import io
import json
import random
import wave
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from mill.api.errors import DataError
from mill.api.message import Blob, Media
from mill.api.model import MillModel, ModelCapabilities
from mill.api.registry import models
from mill.api.request import CLASSIFY, GENERATE, LOGLIKELIHOOD, ZERO_SHOT, Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample
from mill.models.media.decode import load_image
from mill.models.media.prefetch import failure
from mill.score.run_scores import Outcome
from mill.tasks.data import Dataset, read_rows
from mill.tasks.images import CIFAR10, WNIDS, ChoiceTask, ClassifiedSet, ClassifiedTask
from mill.tasks.images import CIFAR10_CLASSES as TEN
from mill.tasks.images import IMAGENET_CLASSES as THOUSAND
from mill.tasks.load import make_task, select, serve
from mill.tasks.shapes import COLOURS, PAIRS, SHAPES, UNSEEN, class_name, draw
from tests.plans import prepare

SETTINGS = RenderSettings()
CIFAR_PATH = "uoft-cs/cifar10/plain_text"
IMAGENET_PATH = "ILSVRC/imagenet-1k"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the search path."""
    monkeypatch.setenv("MILL_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def png(number: int, side: int = 8) -> bytes:
    """An image whose first pixel is its number; the rest is noise, which does not get smaller when packed."""
    pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8)
    pixels[0, 0] = (number, 7, 7)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def number_of(media: Media) -> int:
    return int(load_image(media).getpixel((0, 0))[0])


def write_folders(split: Path, labels: Sequence[str], **options: Any) -> None:
    """One sub-folder a label; the images are numbered in the order of the labels."""
    for number, label in enumerate(labels):
        file = split / label / f"{number:03}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png(number, **options))


def write_parquet(file: Path, labels: Sequence[Any], column: str = "img", rows: int = 3, **options: Any) -> Path:
    """As the hub has it: images as bytes with a name, classes as numbers; several row groups."""
    file.parent.mkdir(parents=True, exist_ok=True)
    cells = [{"bytes": png(number, **options), "path": f"{number}.png"} for number in range(len(labels))]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    pq.write_table(pa.table({column: pa.array(cells, kind), "label": list(labels)}), file, row_group_size=rows)
    return file


def write_saved(split: Path, labels: Sequence[int], classes: Sequence[str], column: str = "img") -> None:
    import datasets

    features = datasets.Features({column: datasets.Image(), "label": datasets.ClassLabel(names=list(classes))})
    images = [Image.open(io.BytesIO(png(number))) for number in range(len(labels))]
    datasets.Dataset.from_dict({column: images, "label": list(labels)}, features=features).save_to_disk(split)


def task_of(name: str) -> ClassifiedTask:
    task = make_task(name)
    assert isinstance(task, ClassifiedTask)
    return task


def pairs(task: ClassifiedTask) -> dict[int, int]:
    """Which image has which class, by the images' own pixels."""
    return {number_of(task.media(sample)): task.right(sample) for sample in task.samples()}


NUMBERS = [3, 0, 9, 3, 5, 5, 1]


@pytest.mark.parametrize("shape", ["folders", "parquet", "shards", "saved"])
def test_cifar10_has_the_same_images_and_classes_in_every_shape(root: Path, shape: str) -> None:
    folder = root / CIFAR_PATH
    if shape == "folders":
        write_folders(folder / "test", [TEN[number] for number in NUMBERS])
    elif shape == "parquet":
        write_parquet(folder / "test.parquet", NUMBERS)
    elif shape == "shards":
        write_parquet(folder / "test" / "test-00000-of-00001.parquet", NUMBERS)
    else:
        write_saved(folder / "test", NUMBERS, TEN)
    for name in ("cifar10", "cifar10_supervised", "cifar10_mcq", "cifar10_mcq_gen"):
        task = task_of(name)
        assert pairs(task) == dict(enumerate(NUMBERS))
        assert task.warnings() == []
        assert sorted(sample.id for sample in task.samples()) == [str(index) for index in range(7)]


WNID_NUMBERS = [7, 999, 0, 134, 7]


def test_images_saved_as_paths_are_found_where_they_are(root: Path) -> None:
    """What `datasets` writes for images whose bytes it did not copy."""
    write_folders(root / "elsewhere", ["a"] * 3)
    cells = [{"bytes": None, "path": str(root / "elsewhere" / "a" / f"{number:03}.png")} for number in range(3)]
    file = root / CIFAR_PATH / "test.parquet"
    file.parent.mkdir(parents=True)
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    pq.write_table(pa.table({"img": pa.array(cells, kind), "label": [4, 5, 6]}), file)
    assert pairs(task_of("cifar10")) == {0: 4, 1: 5, 2: 6}


@pytest.mark.parametrize("label", [10, -1, 1000])
def test_a_number_that_is_no_class_is_refused_with_file_and_row(root: Path, label: int) -> None:
    file = write_parquet(root / CIFAR_PATH / "test.parquet", [1, 2, label])
    for name in ("cifar10", "cifar10_mcq"):
        with pytest.raises(DataError) as caught:
            task_of(name).samples()
        assert str(file) in str(caught.value) and "row 2" in str(caught.value)
        assert f"has the label {label}, which is none of the 10 classes" in str(caught.value)


def test_a_row_without_label_or_image_is_refused(root: Path) -> None:
    file = root / CIFAR_PATH / "test.jsonl"
    file.parent.mkdir(parents=True)
    for row, columns in (({"img": "a.png"}, "label"), ({"label": 99}, "image, img")):
        file.write_text(json.dumps(row) + "\n")
        with pytest.raises(DataError, match=rf"a row of uoft-cs/cifar10 has none of the columns {columns}$"):
            task_of("cifar10").samples()


# Requests


@pytest.fixture
def cifar(root: Path) -> Path:
    """A hundred images in a Parquet file."""
    return write_parquet(root / CIFAR_PATH / "test.parquet", [number % 10 for number in range(100)], rows=16)


def test_zero_shot_asks_for_one_of_all_classes_with_the_datasets_templates(cifar: Path) -> None:
    task = task_of("cifar10")
    sample = task.samples()[13]
    (request,) = task.requests(sample, RenderSettings(system_prompt="Be brief."))
    assert (request.kind, request.labels.names, request.labels.texts) == (ZERO_SHOT, TEN, TEN)
    assert request.labels.templates == CIFAR10.templates and len(CIFAR10.templates) == 4
    assert [message.role for message in request.context] == ["user"]  # type: ignore[union-attr]
    assert [number_of(media) for media in request.media] == [13]
    assert task.target(sample) == "cat"


def test_imagenet_is_shown_by_name_and_answered_by_wnid(root: Path) -> None:
    write_parquet(root / IMAGENET_PATH / "validation.parquet", WNID_NUMBERS, "image")
    task = task_of("imagenet")
    (request,) = task.requests(task.samples()[0], SETTINGS)
    assert (request.labels.names, request.labels.texts) == (WNIDS, THOUSAND)
    assert task.target(task.samples()[0]) == THOUSAND[7]
    answer = Response(label=WNIDS[7], ranking=((WNIDS[7], 0.9), (WNIDS[8], 0.1)))
    assert task.score(task.samples()[0], [answer]) == {"acc": 1.0, "acc5": 1.0}
    (supervised,) = task_of("imagenet_supervised").requests(task.samples()[0], SETTINGS)
    assert supervised.labels.names == WNIDS


def test_imagenet_uses_open_clips_eighty_templates(root: Path) -> None:
    pytest.importorskip("open_clip")
    from open_clip.zero_shot_metadata import OPENAI_IMAGENET_TEMPLATES

    write_parquet(root / IMAGENET_PATH / "validation.parquet", WNID_NUMBERS, "image")
    task = task_of("imagenet")
    (request,) = task.requests(task.samples()[0], SETTINGS)
    filled = [template.replace("{c}", "tench") for template in request.labels.templates]
    assert filled == [make("tench") for make in OPENAI_IMAGENET_TEMPLATES]
    assert len(filled) == 80


def choices(task: ClassifiedTask) -> dict[str, list[int]]:
    assert isinstance(task, ChoiceTask)
    return {sample.id: task.options(sample) for sample in task.samples()}


def test_a_draw_depends_on_the_sample_alone(cifar: Path) -> None:
    first, again, written = (choices(task_of(name)) for name in ("cifar10_mcq", "cifar10_mcq", "cifar10_mcq_gen"))
    assert first == again == written
    task = task_of("cifar10_mcq")
    assert isinstance(task, ChoiceTask)
    backwards = {sample.id: task.options(sample) for sample in reversed(task.samples())}
    assert backwards == first


def test_classes_that_share_the_right_ones_name_are_never_offered(root: Path) -> None:
    twice = [number for number, name in enumerate(THOUSAND) if THOUSAND.count(name) > 1]
    labels = [twice[0]] * 200
    write_parquet(root / IMAGENET_PATH / "validation.parquet", labels, "image", side=2, rows=200)
    for shown in choices(task_of("imagenet_mcq")).values():
        assert [THOUSAND[number] for number in shown].count(THOUSAND[twice[0]]) == 1


def test_fewer_classes_than_choices_are_all_shown(tmp_path: Path) -> None:
    data = ClassifiedSet(Dataset("org/two"), ("test",), ("day", "night"), "When is it?")
    sample = Sample("0", {"image": str(tmp_path / "a.png"), "label": "night"})
    task = ChoiceTask("two_mcq", data)
    assert sorted(task.options(sample)) == [0, 1]
    assert [request.continuation for request in task.requests(sample, SETTINGS)] == ["A", "B"]


def test_a_choice_shows_the_image_then_the_question_and_its_letters(cifar: Path) -> None:
    task = task_of("cifar10_mcq")
    sample = task.samples()[42]
    shown = choices(task)["42"]
    requests = task.requests(sample, RenderSettings(system_prompt="Be brief."))
    assert [request.continuation for request in requests] == ["A", "B", "C", "D"]
    assert {request.kind for request in requests} == {LOGLIKELIHOOD}
    context = requests[0].context
    assert isinstance(context, tuple)
    system, user = context
    assert (system.role, system.text, user.role) == ("system", "Be brief.", "user")
    image, text = user.parts
    assert isinstance(image, Media) and number_of(image) == 42
    lines = [f"{letter}. {TEN[number]}" for letter, number in zip("ABCD", shown, strict=True)]
    ending = "Answer with the letter of the right choice."
    assert text == "\n".join(["What does this small picture show?", *lines, ending])
    assert task.target(sample) == f"{'ABCD'[shown.index(2)]}. bird"


# Scores


RANKING = ("dog", "cat", "deer", "bird", "frog", "horse", "ship", "truck", "airplane", "automobile")


@pytest.mark.parametrize("name", ["cifar10", "cifar10_supervised"])
def test_acc_counts_the_first_and_acc5_the_first_five(cifar: Path, name: str) -> None:
    task = task_of(name)
    answer = Response(label="dog", ranking=tuple((label, 1.0 / (rank + 1)) for rank, label in enumerate(RANKING)))
    found = {TEN[int(sample.id)]: task.score(sample, [answer]) for sample in task.samples()[:10]}
    assert {label for label, values in found.items() if values["acc"] == 1} == {"dog"}
    assert {label for label, values in found.items() if values["acc5"] == 1} == {"dog", "cat", "deer", "bird", "frog"}
    assert {value for values in found.values() for value in values.values()} == {0.0, 1.0}


@pytest.mark.parametrize(
    ("text", "letter"),
    [("B", "B"), (" C\n", "C"), ("(D)", "D"), ("The answer is A.", "A"), ("**B**", "B"), ("D. cat", "D"), ("C: A dog", "C")],
)
def test_the_letter_written_first_is_the_choice(cifar: Path, text: str, letter: str) -> None:
    task = task_of("cifar10_mcq_gen")
    found: dict[str, Any] = {sample.id: task.score(sample, [Response(text=text)])["acc"] for sample in task.samples()}
    assert found == {
        sample: float("ABCD"[shown.index(int(sample) % 10)] == letter) for sample, shown in choices(task).items()
    }
    assert 0 < sum(found.values()) < 100
    equal = {sample.id: task.extracted(sample, [Response(text=text)]) == task.target(sample) for sample in task.samples()}
    assert equal == {sample: value == 1.0 for sample, value in found.items()}


# Which rendering serves which model

CLIP = ModelCapabilities({"image", "text"}, kinds=frozenset({ZERO_SHOT}))
TIMM = ModelCapabilities({"image"}, kinds=frozenset({CLASSIFY}))
SEES_AND_SCORES = ModelCapabilities({"image", "text"}, supports_logprobs=True)
SEES_AND_WRITES = ModelCapabilities({"image", "text"})


@pytest.mark.parametrize("name", ["cifar10", "imagenet"])
@pytest.mark.parametrize(
    ("capabilities", "rendering"),
    [(CLIP, ""), (TIMM, "_supervised"), (SEES_AND_SCORES, "_mcq"), (SEES_AND_WRITES, "_mcq_gen")],
)
def test_a_model_gets_the_rendering_it_can_serve(name: str, capabilities: ModelCapabilities, rendering: str) -> None:
    served = serve(make_task(name), capabilities, "the model", "backends that do: clip")
    assert served.name == name + rendering
    assert capabilities.serves(served.kind)


# The classes of ImageNet


def test_imagenet_names_are_open_clips() -> None:
    open_clip = pytest.importorskip("open_clip")
    assert list(THOUSAND) == list(open_clip.IMAGENET_CLASSNAMES)


def test_imagenet_wnids_are_timms() -> None:
    pytest.importorskip("timm")
    from timm.data import ImageNetInfo

    assert list(WNIDS) == ImageNetInfo("imagenet-1k").label_names()


# Bytes stay where they are


def bytes_column(file: Path) -> list[tuple[int, int]]:
    """The byte ranges of the images of each row group in a Parquet file."""
    found = []
    metadata = pq.ParquetFile(file).metadata
    for group in range(metadata.num_row_groups):
        parts = [metadata.row_group(group).column(index) for index in range(metadata.num_columns)]
        (part,) = [part for part in parts if part.path_in_schema.endswith(".bytes")]
        start = part.dictionary_page_offset or part.data_page_offset
        found.append((start, start + part.total_compressed_size))
    return found


def damage(file: Path, groups: Sequence[int]) -> None:
    """Zeros instead of the images of these row groups; everything else stays."""
    raw = bytearray(file.read_bytes())
    for start, end in [bytes_column(file)[group] for group in groups]:
        raw[start:end] = bytes(end - start)
    file.write_bytes(raw)


def test_images_in_a_table_are_not_read_until_they_are_needed(root: Path) -> None:
    """Their bytes are destroyed: samples and requests do not notice, the first reader does."""
    file = write_parquet(root / CIFAR_PATH / "test.parquet", NUMBERS)
    damage(file, [0, 1, 2])
    task = task_of("cifar10")
    samples = task.samples()
    requests = [request for sample in samples for request in task.requests(sample, SETTINGS)]
    assert [task.right(sample) for sample in samples] == NUMBERS
    assert all(isinstance(request.media[0].source, Blob) for request in requests)
    assert [request.media[0].name for request in requests][2] == f"{file} (img of row 2)"
    with pytest.raises(DataError, match=r"test\.parquet \(img of row 2\)"):
        load_image(requests[2].media[0])


def test_images_of_a_table_are_read_in_any_order_and_by_many_threads(cifar: Path) -> None:
    rows = read_rows(cifar)
    order = np.random.default_rng(0).permutation(100).tolist() * 3
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda row: rows[row]["img"].read(), order))
    assert found == [png(row) for row in order]


class Eye(MillModel):
    """A toy that ranks classes by how near they are to the number in the image's first pixel, modulo ten."""

    def __init__(self, path: str, batch_size: int = 4) -> None:
        self.path, self.batch_size, self.capabilities = path, batch_size, CLIP

    @property
    def model_name(self) -> str:
        return self.path

    def _zero_shot_batch(self, batch: list[Request]) -> list[Response]:
        return [self._rank(request) for request in batch]

    def _rank(self, request: Request) -> Response:
        try:
            seen = number_of(request.media[0]) % 10
        except DataError as error:
            return failure(error)
        ranked = sorted((-abs(seen - number), name) for number, name in enumerate(request.labels.names))[::-1]
        ranking = tuple((name, float(score)) for score, name in ranked)
        return Response(label=ranking[0][0], ranking=ranking)


@pytest.fixture
def evaluate(root: Path, tmp_path: Path) -> Callable[..., Outcome]:
    models.add("eye", Eye)

    def run(task: str = "cifar10", **options: Any) -> Outcome:
        ready = prepare("eye[path=eye]", select([task]), SETTINGS, output_dir=tmp_path / "out", **options)
        return ready.execute(quiet=True)

    return run


# Of twenty images, number n shows class n % 10 to the toy; these are the classes that the data gives them instead.
GIVEN = [number % 10 for number in range(10)] + [0, 0, 0, 0, 0, 9, 9, 9, 9, 9]
LARGE = 64


def expected_scores() -> tuple[float, float]:
    """acc, and acc5 where the five nearest numbers count; equal distances go to the name later in the alphabet."""
    firsts = fives = 0
    for number, given in enumerate(GIVEN):
        nearest = [-other for _, other in sorted((abs(number % 10 - other), -other) for other in range(10))]
        firsts += nearest[0] == given
        fives += given in nearest[:5]
    return firsts / 20, fives / 20


def contents(folder: Path) -> dict[Path, str]:
    return {file: file.read_text() for file in folder.rglob("*") if file.is_file() and file.suffix in (".json", ".jsonl")}


def test_a_run_scores_by_hand_and_keeps_images_out_of_its_files(
    root: Path, evaluate: Callable[..., Outcome], tmp_path: Path
) -> None:
    file = write_parquet(root / CIFAR_PATH / "test.parquet", GIVEN, side=LARGE)
    outcome = evaluate()
    acc, acc5 = expected_scores()
    assert outcome.errors == 0
    assert outcome.tasks[0].metrics["acc"].value == pytest.approx(acc)
    assert outcome.tasks[0].metrics["acc5"].value == pytest.approx(acc5)
    assert 0 < acc < acc5 < 1
    lines = outcome.folder.samples_file("cifar10").read_text().splitlines()
    assert min(len(png(number, LARGE)) for number in range(20)) > 10_000
    assert len(lines) == 20 and max(map(len, lines)) < 2_000
    rows = [json.loads(line) for line in lines]
    assert [row["doc"] for row in rows] == [
        {"img": f"{file} (img of row {number})", "label": label} for number, label in enumerate(GIVEN)
    ]
    assert [row["target"] for row in rows] == [TEN[label] for label in GIVEN]
    assert {row["unrendered"] for row in rows} == {"<user> <image>"}
    assert [json.loads(row["prompt"])[0]["content"][0]["image"] for row in rows] == [row["doc"]["img"] for row in rows]
    for found, text in contents(tmp_path / "out").items():
        assert "PNG" not in text and base64.b64encode(png(0, LARGE))[:16].decode() not in text, found


def test_a_damaged_part_of_a_table_is_counted_errors_and_the_rest_is_scored(
    root: Path, evaluate: Callable[..., Outcome]
) -> None:
    file = write_parquet(root / CIFAR_PATH / "test.parquet", GIVEN, rows=5)
    damage(file, [1])
    outcome = evaluate()
    assert (outcome.errors, outcome.tasks[0].n, outcome.tasks[0].metrics["acc"].n) == (5, 20, 15)
    assert [failure["id"] for failure in outcome.tasks[0].failures] == ["5", "6", "7", "8", "9"]
    assert all(f"img of row {failure['id']}" in failure["error"] for failure in outcome.tasks[0].failures)


def test_a_limit_takes_label_folders_in_turn_and_a_image_keeps_its_name(root: Path) -> None:
    """Three airplanes, two birds, one cat: as many of each as there are, the names as the files are sorted."""
    write_folders(root / CIFAR_PATH / "test", ["airplane", "airplane", "airplane", "bird", "bird", "cat"])
    samples = make_task("cifar10").samples()
    assert [sample.doc["label"] for sample in samples] == ["airplane", "bird", "cat", "airplane", "bird", "airplane"]
    assert [sample.id for sample in samples] == ["0", "3", "5", "1", "4", "2"]
    assert [Path(sample.doc["image"]).stem for sample in samples] == ["000", "003", "005", "001", "004", "002"]
    assert [make_task("cifar10").target(sample) for sample in samples[:3]] == ["airplane", "bird", "cat"]


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
        ("**Answer:** **B**", 1.0),
        ("Answer: A picture is not enough. Answer: B", 1.0),
        ("The answer is B.", 1.0),
        ("Answer: C", 0.0),
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
