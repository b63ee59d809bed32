"""The timm backend gives timm's results, refuses tasks of another size before weights load, and reports bad images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mill.api.errors import CannotServe, ModelError, UnknownName
from mill.api.message import IMAGE, Labels, Media, Message
from mill.api.request import CLASSIFY, Request
from mill.api.response import Response
from mill.api.task import RenderSettings
from mill.models.timm import TimmModel
from mill.runs.evaluate import Plan
from mill.tasks.images import CIFAR10_CLASSES as CLASSES
from mill.tasks.load import select
from tests.plans import prepare

timm = pytest.importorskip("timm")

ARCHITECTURES = ("test_vit", "test_efficientnet")
LABELS = Labels(CLASSES)


def make_image(number: int) -> Image.Image:
    """Images of many sizes, colours and modes."""
    draw = np.random.default_rng(number)
    width, height = (int(side) for side in draw.integers(20, 260, 2))
    coarse = Image.fromarray(draw.integers(0, 256, (3, 4, 3), dtype=np.uint8)).resize((width, height))
    noisy = np.asarray(coarse).astype(int) + draw.integers(-30, 30, (height, width, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).convert(("RGB", "L", "RGB", "P")[number % 4])


@pytest.fixture(scope="module")
def image_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("images")
    files = [folder / f"{number:02}.{'jpg' if number % 4 < 2 else 'png'}" for number in range(12)]
    for number, file in enumerate(files):
        make_image(number).save(file)
    return files


def seeded(name: str, classes: int, seed: int = 7) -> Any:
    """A model whose labels differ between images, unlike those of fresh random weights."""
    torch.manual_seed(seed)
    model = timm.create_model(name, pretrained=False, num_classes=classes)
    head = model.get_classifier()
    torch.nn.init.normal_(head.weight, std=20.0 if "efficientnet" in name else 1.0)
    torch.nn.init.normal_(head.bias, std=0.3)
    return model.eval()


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint with ten classes for each architecture."""
    folder = tmp_path_factory.mktemp("checkpoints")
    files = {name: folder / f"{name}.pth" for name in ARCHITECTURES}
    for name, file in files.items():
        torch.save(seeded(name, 10).state_dict(), file)
    return files


def plain_loop(name: str, checkpoint: Path, files: list[Path]) -> torch.Tensor:
    """Probabilities as in timm's documentation, one image at a time."""
    from timm.data import create_transform, resolve_model_data_config

    model = timm.create_model(name, pretrained=False, num_classes=10, checkpoint_path=str(checkpoint)).eval()
    transform = create_transform(**resolve_model_data_config(model), is_training=False)
    with torch.no_grad():
        rows = [model(transform(Image.open(file).convert("RGB")).unsqueeze(0)).softmax(dim=1) for file in files]
    return torch.cat(rows)


def image_request(source: Any, labels: Labels = LABELS) -> Request:
    return Request(CLASSIFY, (Message("user", (Media(IMAGE, source),)),), labels=labels)


def probabilities(response: Response) -> dict[str, float]:
    assert response.ranking is not None, response.error
    return dict(response.ranking)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("batch_size", [5, 64])
def test_probabilities_match_a_plain_timm_loop(
    name: str, batch_size: int, checkpoints: dict[str, Path], image_files: list[Path]
) -> None:
    expected = plain_loop(name, checkpoints[name], image_files)
    model = TimmModel(name, num_classes=10, checkpoint=str(checkpoints[name]), batch_size=batch_size, device="cpu")
    answers = model.classify([image_request(file) for file in image_files])
    assert [answer.label for answer in answers] == [CLASSES[index] for index in expected.argmax(dim=1)]
    for answer, row in zip(answers, expected, strict=True):
        assert probabilities(answer) == pytest.approx(dict(zip(CLASSES, row.tolist(), strict=True)), abs=1e-5)
        scores = [score for _, score in answer.ranking or ()]
        assert scores == sorted(scores, reverse=True)
        assert (answer.ranking or ())[0][0] == answer.label
    assert len({answer.label for answer in answers}) >= 3, "the model must not give all images the same label"
    assert expected.std(dim=0).max() > 0.02


def test_the_head_size_is_read_without_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timm, "create_model", lambda *_, **__: pytest.fail("weights were loaded"))
    assert TimmModel("test_vit").head_size == 1000
    assert TimmModel("vit_base_patch16_224.augreg_in21k").head_size == 21843
    assert TimmModel("resnet50.a1_in1k", num_classes=10).head_size == 10


def test_random_weights_are_the_same_in_every_run_with_a_warning(image_files: list[Path]) -> None:
    runs = []
    for _ in range(2):
        model = TimmModel("test_efficientnet", pretrained=False, num_classes=10)
        runs.append(probabilities(model.classify([image_request(image_files[0])])[0]))
        assert model.warnings() == ["the weights of test_efficientnet are random: pretrained=false and no checkpoint"]
        torch.rand(3)
    assert runs[0] == runs[1]


def test_each_request_gets_its_own_labels(checkpoints: dict[str, Path], image_files: list[Path]) -> None:
    """Two tasks of the same size may share a batch."""
    other = Labels(tuple(f"thing {number}" for number in range(10)))
    expected = plain_loop("test_vit", checkpoints["test_vit"], image_files[:4]).argmax(dim=1).tolist()
    model = TimmModel("test_vit", num_classes=10, checkpoint=str(checkpoints["test_vit"]))
    requests = [
        image_request(file, labels) for file, labels in zip(image_files[:4], (LABELS, other, LABELS, other), strict=True)
    ]
    names = [request.labels.names[index] for request, index in zip(requests, expected, strict=True)]
    assert [answer.label for answer in model.classify(requests)] == names


def test_a_cleaned_model_loads_again(checkpoints: dict[str, Path], image_files: list[Path]) -> None:
    model = TimmModel("test_vit", num_classes=10, checkpoint=str(checkpoints["test_vit"]))
    before = probabilities(model.classify([image_request(image_files[0])])[0])
    model.clean()
    assert probabilities(model.classify([image_request(image_files[0])])[0]) == before


def test_a_request_without_an_image_or_with_two_is_an_error(checkpoints: dict[str, Path], image_files: list[Path]) -> None:
    model = TimmModel("test_vit", num_classes=10, checkpoint=str(checkpoints["test_vit"]))
    none = Request(CLASSIFY, (Message("user", ("what is it?",)),), labels=LABELS)
    two = Request(CLASSIFY, (Message("user", tuple(Media(IMAGE, file) for file in image_files[:2])),), labels=LABELS)
    answers = model.classify([image_request(image_files[0]), none, two, image_request(image_files[1])])
    assert [answer.failed for answer in answers] == [False, True, True, False]
    assert "no image" in (answers[1].error or "")
    assert "2 images" in (answers[2].error or "")
    alone = model.classify([image_request(image_files[0]), image_request(image_files[1])])
    assert [answers[0].label, answers[3].label] == [answer.label for answer in alone]


# Refused specs


def test_a_wrong_name_is_refused_with_the_nearest_ones() -> None:
    with pytest.raises(UnknownName) as caught:
        TimmModel("resnet5O")
    assert "resnet50" in caught.value.nearest
    assert str(caught.value).startswith("unknown timm model 'resnet5O'; did you mean ")
    assert set(caught.value.nearest) <= set(timm.list_models())


def test_a_wrong_tag_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(UnknownName) as caught:
        TimmModel("resnet50.a9_in1k")
    assert "unknown pretrained tag of resnet50 'a9_in1k'" in str(caught.value)
    tags = timm.list_pretrained("resnet50.*")
    assert len(tags) > 5
    assert all(tag in str(caught.value) for tag in tags)


@pytest.mark.parametrize("what", ["of another size", "damaged"])
def test_a_checkpoint_of_another_shape_is_refused_in_one_line(
    tmp_path: Path, what: str, checkpoints: dict[str, Path]
) -> None:
    file = checkpoints["test_vit"]
    if what == "damaged":
        (tmp_path / "cut.pth").write_bytes(file.read_bytes()[:500])
        file = tmp_path / "cut.pth"
    model = TimmModel("test_vit", num_classes=11 if what == "of another size" else 10, checkpoint=str(file))
    with pytest.raises(ModelError, match="timm cannot load test_vit: ") as caught:
        model.load()
    assert "\n" not in str(caught.value)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(UnknownName, match="it takes float32, float16, bfloat16"):
        TimmModel("test_vit", dtype="float8")


# In a run


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two images of each class, in label folders."""
    split = tmp_path / "data" / "uoft-cs" / "cifar10" / "test"
    for number in range(20):
        file = split / CLASSES[number % 10] / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        make_image(number).save(file)
    monkeypatch.setenv("MILL_DATA", str(tmp_path / "data"))
    return split


def plan(spec: str, task: str, folder: Path, **options: Any) -> Plan:
    return prepare(spec, select([task]), RenderSettings(), output_dir=folder, **options)


@pytest.mark.parametrize("task", ["cifar10_supervised", "cifar10"])
def test_a_head_of_another_size_is_refused_before_weights_load(
    task: str, cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timm, "create_model", lambda *_, **__: pytest.fail("weights were loaded"))
    with pytest.raises(CannotServe) as caught:
        plan("timm[path=test_vit.r160_in1k]", task, tmp_path / "out")
    assert "test_vit.r160_in1k has 1000 classes" in str(caught.value)
    assert "10 labels" in str(caught.value)
    assert not list((tmp_path / "out").rglob("*.jsonl"))


def test_a_corrupt_image_is_one_error_and_the_others_are_unchanged(
    cifar: Path, tmp_path: Path, checkpoints: dict[str, Path]
) -> None:
    spec = f"timm[path=test_vit,num_classes=10,checkpoint={checkpoints['test_vit']},batch_size=8]"

    def run(folder: str) -> tuple[Any, list[dict[str, Any]]]:
        outcome = plan(spec, "cifar10_supervised", tmp_path / folder).execute(quiet=True)
        file = outcome.folder.samples_file("cifar10_supervised")
        return outcome, [json.loads(line) for line in file.read_text().splitlines()]

    _, before = run("whole")
    bad = cifar / "cat" / "13.png"
    bad.write_bytes(bad.read_bytes()[:300])
    outcome, after = run("damaged")
    assert (outcome.errors, outcome.tasks[0].n, outcome.tasks[0].metrics["acc"].n) == (1, 20, 19)
    (failed,) = [row for row in after if row["error"]]
    assert failed["doc"] == {"image": str(bad), "label": "cat"} and str(bad) in failed["error"]
    assert outcome.tasks[0].failures == [{"id": failed["id"], "error": failed["error"]}]
    good = [(row, row_before) for row, row_before in zip(after, before, strict=True) if row is not failed]
    assert [row["values"] for row, _ in good] == [row_before["values"] for _, row_before in good]
    expected = plain_loop("test_vit", checkpoints["test_vit"], [Path(row["doc"]["image"]) for row, _ in good])
    right = [CLASSES.index(row["doc"]["label"]) for row, _ in good]
    hits = (expected.argmax(dim=1) == torch.tensor(right)).double().mean().item()
    assert outcome.tasks[0].metrics["acc"].value == pytest.approx(hits)
    top = expected.topk(5, dim=1).indices.tolist()
    hits5 = sum(number in row for number, row in zip(right, top, strict=True)) / 19
    assert outcome.tasks[0].metrics["acc5"].value == pytest.approx(hits5)


# Arguments, name and identity


def test_everything_that_changes_the_scores_changes_the_identity(tmp_path: Path, checkpoints: dict[str, Path]) -> None:
    copy, other = tmp_path / "copy.pth", tmp_path / "other.pth"
    copy.write_bytes(checkpoints["test_vit"].read_bytes())
    torch.save(seeded("test_vit", 10, seed=8).state_dict(), other)
    models = [
        TimmModel("test_vit"),
        TimmModel("test_resnet"),
        TimmModel("test_vit", pretrained=False),
        TimmModel("test_vit", num_classes=10),
        TimmModel("test_vit", dtype="bfloat16"),
        TimmModel("test_vit", checkpoint=str(copy)),
        TimmModel("test_vit", checkpoint=str(other)),
    ]
    identities = [json.dumps(model.identity(), sort_keys=True) for model in models]
    assert len(set(identities)) == len(models)
    same = TimmModel("test_vit", checkpoint=str(checkpoints["test_vit"]), batch_size=2, device="cpu")
    assert same.identity() == models[5].identity()
