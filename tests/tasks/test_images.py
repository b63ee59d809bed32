"""Images with classes: from made-up data in every shape to requests, scores and small files, whatever the model can."""

from __future__ import annotations

import base64
import io
import json
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
from mill.api.request import CLASSIFY, LOGLIKELIHOOD, ZERO_SHOT, Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample
from mill.models.media.decode import load_image
from mill.models.media.inputs import failure
from mill.score.run_scores import Outcome
from mill.tasks.data import Dataset, read_rows
from mill.tasks.images import CIFAR10, WNIDS, ChoiceTask, ClassifiedSet, ClassifiedTask
from mill.tasks.images import CIFAR10_CLASSES as TEN
from mill.tasks.images import IMAGENET_CLASSES as THOUSAND
from mill.tasks.load import make_task, select, serve
from tests.plans import prepare

SETTINGS = RenderSettings()
CIFAR_PATH = "uoft-cs/cifar10/plain_text"
IMAGENET_PATH = "ILSVRC/imagenet-1k"


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


@pytest.mark.parametrize("shape", ["folders", "parquet", "saved"])
def test_cifar10_has_the_same_images_and_classes_in_every_shape(root: Path, shape: str) -> None:
    folder = root / CIFAR_PATH
    if shape == "folders":
        write_folders(folder / "test", [TEN[number] for number in NUMBERS])
    elif shape == "parquet":
        write_parquet(folder / "test.parquet", NUMBERS)
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
