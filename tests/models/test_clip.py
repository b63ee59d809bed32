"""The clip backend gives the results of open_clip's zero-shot code, for images and texts, and refuses invalid specs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mill.api.errors import ModelError, SpecError, UnknownName
from mill.api.message import IMAGE, Labels, Media, Message
from mill.api.request import ZERO_SHOT, Request
from mill.api.response import Response
from mill.models.clip import ClipModel

open_clip = pytest.importorskip("open_clip")

NAME = "mill-test-tiny"
CONFIG = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 32, "head_width": 16, "patch_size": 8},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2},
}
CLASSES = ("cat", "dog", "airplane", "red car", "sailing ship", "tree frog", "house", "bicycle")
TEMPLATES = ("a photo of a {c}.", "a blurry picture of the {c}.", "{c}", "art of {c} on a wall")
DEFAULT = ("a photo of a {c}.",)


@pytest.fixture(scope="module")
def architecture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A tiny architecture registered with open_clip."""
    file = tmp_path_factory.mktemp("configs") / f"{NAME}.json"
    file.write_text(json.dumps(CONFIG))
    open_clip.add_model_config(file)
    yield NAME
    open_clip.factory._MODEL_CONFIG_PATHS.remove(file)
    del open_clip.factory._MODEL_CONFIGS[NAME]


def weights(architecture: str, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights large enough that images and texts are far apart."""
    torch.manual_seed(seed)
    model = open_clip.create_model(architecture)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.25)
        model.token_embedding.weight.normal_(std=1.0)
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.fixture(scope="module")
def checkpoint(architecture: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("weights") / "tiny.pt"
    torch.save(weights(architecture), file)
    return str(file)


def save_folder(folder: Path, state: dict[str, torch.Tensor]) -> str:
    """A model folder as on the hub, with its own preprocessing."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    preprocess = {"mean": [0.1, 0.5, 0.9], "std": [0.4, 0.5, 0.6], "interpolation": "bilinear", "resize_mode": "squash"}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": CONFIG, "preprocess_cfg": preprocess}))
    save_file({name: value.contiguous() for name, value in state.items()}, folder / "open_clip_model.safetensors")
    return str(folder)


@pytest.fixture(scope="module")
def folder(architecture: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_folder(tmp_path_factory.mktemp("folder") / "tiny-clip", weights(architecture, seed=1))


@pytest.fixture(scope="module")
def image_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("images")
    files = []
    for number in range(12):
        draw = np.random.default_rng(number)
        width, height = (int(side) for side in draw.integers(20, 120, 2))
        image = Image.fromarray(draw.integers(0, 256, (4, 4, 3), dtype=np.uint8)).resize(
            (width, height), Image.Resampling.BOX
        )
        files.append(folder / f"{number:02}.png")
        image.convert(("RGB", "L", "P")[number % 3]).save(files[-1])
    return files


class Reference:
    """open_clip, called as in its documentation."""

    def __init__(self, name: str, pretrained: str | None = None) -> None:
        self.model, _, self.transform = open_clip.create_model_and_transforms(name, pretrained=pretrained)
        self.model.eval()
        self.tokenizer = open_clip.get_tokenizer(name)

    def images(self, files: Sequence[Path]) -> torch.Tensor:
        with torch.no_grad():
            rows = [self.transform(Image.open(file).convert("RGB")).unsqueeze(0) for file in files]
            return torch.cat([self.model.encode_image(row, normalize=True) for row in rows])

    def texts(self, texts: Sequence[str]) -> torch.Tensor:
        with torch.no_grad():
            return self.model.encode_text(self.tokenizer(list(texts)), normalize=True)

    def cosines(self, files: Sequence[Path], classes: Sequence[str], templates: Sequence[str]) -> torch.Tensor:
        renderers = [lambda name, template=template: template.replace("{c}", name) for template in templates]
        classifier = open_clip.build_zero_shot_classifier(self.model, self.tokenizer, list(classes), renderers)
        return self.images(files) @ classifier


@pytest.fixture(scope="module")
def reference(architecture: str, checkpoint: str) -> Reference:
    return Reference(architecture, checkpoint)


def ready(model: ClipModel) -> ClipModel:
    """Load the weights, as a run does before the first request."""
    model.load()
    return model


@pytest.fixture
def model(architecture: str, checkpoint: str) -> ClipModel:
    return ready(ClipModel(architecture, checkpoint, batch_size=5, device="cpu"))


def image_request(source: Any, labels: Labels) -> Request:
    return Request(ZERO_SHOT, (Message("user", (Media(IMAGE, source),)),), labels=labels)


def check(answers: Sequence[Response], names: Sequence[str], expected: torch.Tensor) -> None:
    """Labels and cosines are those of the reference."""
    assert [answer.error for answer in answers] == [None] * len(expected)
    for answer, row in zip(answers, expected, strict=True):
        assert answer.label == names[int(row.argmax())]
        assert dict(answer.ranking or ()) == pytest.approx(dict(zip(names, row.tolist(), strict=True)), abs=1e-5)
        scores = [score for _, score in answer.ranking or ()]
        assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("templates", [TEMPLATES, TEMPLATES[1:2]])
def test_rankings_match_open_clips_zero_shot_code(
    model: ClipModel, reference: Reference, image_files: list[Path], templates: tuple[str, ...]
) -> None:
    expected = reference.cosines(image_files, CLASSES, templates)
    answers = model.zero_shot_classify([image_request(file, Labels(CLASSES, templates=templates)) for file in image_files])
    check(answers, CLASSES, expected)
    assert len({answer.label for answer in answers}) > 1, "the model must not give all images the same label"
    assert expected.std(dim=0).min() > 0.01 and expected.std(dim=1).min() > 0.01


def test_without_templates_the_prompt_template_is_used(
    architecture: str, checkpoint: str, reference: Reference, image_files: list[Path]
) -> None:
    requests = [image_request(file, Labels(CLASSES)) for file in image_files]
    cases: list[tuple[str, dict[str, Any]]] = [
        (DEFAULT[0], {}),
        ("one {c}, then another {c}", {"prompt_template": "one {c}, then another {c}"}),
    ]
    for template, options in cases:
        answers = ready(ClipModel(architecture, checkpoint, **options)).zero_shot_classify(requests)
        check(answers, CLASSES, reference.cosines(image_files, CLASSES, (template,)))


def test_label_texts_replace_names_and_need_not_be_unique(
    model: ClipModel, reference: Reference, image_files: list[Path]
) -> None:
    texts = (*CLASSES[:-1], CLASSES[0])
    names = tuple(f"n{number:05}" for number in range(len(texts)))
    expected = reference.cosines(image_files[:6], texts, TEMPLATES)
    answers = model.zero_shot_classify([image_request(file, Labels(names, texts, TEMPLATES)) for file in image_files[:6]])
    for answer, row in zip(answers, expected, strict=True):
        assert dict(answer.ranking or ()) == pytest.approx(dict(zip(names, row.tolist(), strict=True)), abs=1e-5)


def test_braces_in_a_label_are_text(model: ClipModel, reference: Reference, image_files: list[Path]) -> None:
    names = ("{curly}", "{c}", "{0}")
    expected = reference.images(image_files[:3]) @ reference.texts([f"a photo of a {name}." for name in names]).T
    check(model.zero_shot_classify([image_request(file, Labels(names)) for file in image_files[:3]]), names, expected)


def test_a_folder_has_weights_and_preprocessing(folder: str, image_files: list[Path]) -> None:
    expected = Reference(f"local-dir:{folder}").cosines(image_files, CLASSES, TEMPLATES)
    model = ready(ClipModel(folder))
    check(
        model.zero_shot_classify([image_request(file, Labels(CLASSES, templates=TEMPLATES)) for file in image_files]),
        CLASSES,
        expected,
    )
    assert (model.model_name, model.warnings()) == ("tiny-clip", [])


class Counter:
    """Counts the calls of a method and the rows of its argument."""

    def __init__(self, model: Any, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[int] = []
        inner = getattr(model, method)

        def counted(given: torch.Tensor, **options: Any) -> torch.Tensor:
            self.rows.append(len(given))
            result: torch.Tensor = inner(given, **options)
            return result

        monkeypatch.setattr(model, method, counted)


def test_classes_are_embedded_once_per_label_set(
    model: ClipModel, image_files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = Counter(model._parts[0], "encode_text", monkeypatch)
    images = Counter(model._parts[0], "encode_image", monkeypatch)
    for _ in range(2):
        model.zero_shot_classify([image_request(file, Labels(CLASSES, templates=TEMPLATES)) for file in image_files])
    assert texts.rows == [len(CLASSES) * len(TEMPLATES)]
    assert images.rows == [5, 5, 2] * 2
    model.zero_shot_classify([image_request(image_files[0], Labels(CLASSES[::-1], templates=TEMPLATES))])
    model.zero_shot_classify([image_request(image_files[0], Labels(CLASSES, templates=TEMPLATES[:1]))])
    assert texts.rows[1:] == [len(CLASSES) * len(TEMPLATES), len(CLASSES)]


CAPTIONS = ("a red thing on the left", "two dogs in the snow", "nothing at all", "the sea")


def test_a_text_ranks_candidate_images(model: ClipModel, reference: Reference, image_files: list[Path]) -> None:
    candidates = Labels(tuple(file.name for file in image_files), media=tuple(Media(IMAGE, file) for file in image_files))
    expected = reference.texts(CAPTIONS) @ reference.images(image_files).T
    contexts: list[Any] = [CAPTIONS[0], (Message("user", CAPTIONS[1]),), (Message("user", (CAPTIONS[2],)),), CAPTIONS[3]]
    answers = model.zero_shot_classify([Request(ZERO_SHOT, context, labels=candidates) for context in contexts])
    for answer, row in zip(answers, expected, strict=True):
        values, indices = row.topk(10)
        assert answer.label == image_files[int(row.argmax())].name
        assert [label for label, _ in answer.ranking or ()] == [image_files[index].name for index in indices.tolist()]
        assert [score for _, score in answer.ranking or ()] == pytest.approx(values.tolist(), abs=1e-5)


def test_images_and_texts_may_share_a_batch(model: ClipModel, reference: Reference, image_files: list[Path]) -> None:
    names = tuple(file.name for file in image_files[:6])
    candidates = Labels(names, media=tuple(Media(IMAGE, file) for file in image_files[:6]))
    requests = [
        Request(ZERO_SHOT, CAPTIONS[0], labels=candidates),
        image_request(image_files[7], Labels(CLASSES)),
        Request(ZERO_SHOT, CAPTIONS[1], labels=candidates),
        image_request(image_files[8], candidates),
    ]
    first, second, third, fourth = model.zero_shot_classify(requests)
    images = reference.images(image_files[:6])
    check([first, third], names, reference.texts(CAPTIONS[:2]) @ images.T)
    check([second], CLASSES, reference.cosines(image_files[7:8], CLASSES, DEFAULT))
    check([fourth], names, reference.images(image_files[8:9]) @ images.T)


LONG = "a very long description of " + "many small things and " * 30 + "cats"


def token_count(text: str) -> int:
    """The tokens of a text, with start and end."""
    return len(open_clip.get_tokenizer("ViT-B-32").encode(text)) + 2


def test_a_label_longer_than_the_context_is_cut_as_by_open_clip_with_a_warning(
    model: ClipModel, reference: Reference, image_files: list[Path]
) -> None:
    names = ("cat", LONG, LONG.replace("small", "large"))
    cut = 2 * (token_count(f"a photo of a {LONG}.") - 77)
    assert cut > 50
    answers = model.zero_shot_classify([image_request(file, Labels(names)) for file in image_files[:6]])
    check(answers, names, reference.cosines(image_files[:6], names, DEFAULT))
    assert [answer.truncated_tokens for answer in answers] == [cut] * 6
    assert [warning for warning in model.warnings() if "77 tokens" in warning and "cut" in warning]
    assert len(model.warnings()) == 1


def test_a_query_longer_than_the_context_is_cut_with_a_warning(
    model: ClipModel, reference: Reference, image_files: list[Path]
) -> None:
    names = tuple(file.name for file in image_files)
    candidates = Labels(names, media=tuple(Media(IMAGE, file) for file in image_files))
    long, short = model.zero_shot_classify([Request(ZERO_SHOT, text, labels=candidates) for text in (LONG, "a cat")])
    assert long.label == names[int((reference.texts([LONG]) @ reference.images(image_files).T).argmax())]
    assert model.warnings()
    assert (long.truncated_tokens, short.truncated_tokens) == (token_count(LONG) - 77, 0)


def test_max_context_length_limits_the_tokens(
    architecture: str, checkpoint: str, reference: Reference, image_files: list[Path]
) -> None:
    names = ("cat", "a cat that sits on a mat and looks at the dog in the garden behind the house")
    model = ready(ClipModel(architecture, checkpoint, max_context_length=10, prompt_template="{c}"))
    tokenizer = reference.tokenizer
    rows = torch.zeros(2, 77, dtype=torch.long)
    for row, name in zip(rows, names, strict=True):
        inner = tokenizer.encode(name)[:8]
        row[: len(inner) + 2] = torch.tensor([tokenizer.sot_token_id, *inner, tokenizer.eot_token_id])
    with torch.no_grad():
        expected = reference.images(image_files[:4]) @ reference.model.encode_text(rows, normalize=True).T
    answers = model.zero_shot_classify([image_request(file, Labels(names)) for file in image_files[:4]])
    check(answers, names, expected)
    assert {answer.truncated_tokens for answer in answers} == {token_count(names[1]) - 10}


def test_an_unreadable_image_is_an_error_of_its_request(model: ClipModel, image_files: list[Path], tmp_path: Path) -> None:
    bad, missing = tmp_path / "bad.png", tmp_path / "missing.png"
    bad.write_bytes(image_files[0].read_bytes()[:60])
    labels = Labels(CLASSES)
    alone = model.zero_shot_classify([image_request(file, labels) for file in image_files[:3]])
    answers = model.zero_shot_classify(
        [image_request(file, labels) for file in (image_files[0], bad, image_files[1], missing, image_files[2])]
    )
    assert str(bad) in (answers[1].error or "") and str(missing) in (answers[3].error or "")
    for one, other in zip(alone, (answers[0], answers[2], answers[4]), strict=True):
        assert dict(one.ranking or ()) == pytest.approx(dict(other.ranking or ()), abs=1e-5)


def test_random_weights_are_the_same_in_every_run_with_a_warning(architecture: str, image_files: list[Path]) -> None:
    rankings = []
    for _ in range(2):
        model = ready(ClipModel(architecture))
        rankings.append(model.zero_shot_classify([image_request(image_files[0], Labels(CLASSES))])[0].ranking)
        assert model.warnings() == [f"the weights of {architecture} are random: pass pretrained=..."]
        torch.rand(3)
    assert rankings[0] == rankings[1]


# Refused specs


def test_an_unknown_architecture_is_refused_with_the_nearest_ones() -> None:
    with pytest.raises(UnknownName, match="unknown open_clip architecture 'ViT-B32'") as caught:
        ClipModel("ViT-B32")
    assert "ViT-B-32" in caught.value.nearest


def test_a_wrong_tag_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(UnknownName, match="unknown pretrained tag of ViT-B-32 'laion2b'") as caught:
        ClipModel("ViT-B-32", "laion2b")
    tags = open_clip.list_pretrained_tags_by_model("ViT-B-32")
    assert len(tags) > 5
    assert all(tag in str(caught.value) for tag in tags)


@pytest.mark.parametrize("template", ["a photo of a cat", "{ c }"])
def test_a_template_without_a_class_field_is_refused(template: str) -> None:
    with pytest.raises(SpecError, match=r"prompt_template=.*it needs \{c\} for the class name"):
        ClipModel("ViT-B-32", prompt_template=template)


def test_a_checkpoint_of_another_shape_is_refused_in_one_line(architecture: str, tmp_path: Path) -> None:
    file = tmp_path / "other.pt"
    torch.save({"visual.proj": torch.zeros(3, 3)}, file)
    with pytest.raises(ModelError, match=f"open_clip cannot load {architecture}-other: ") as caught:
        ClipModel(architecture, str(file)).load()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("option", "value"), [("batch_size", 0), ("max_context_length", 2)])
def test_sizes_that_are_too_small_are_refused(option: str, value: int) -> None:
    with pytest.raises(SpecError, match=rf"clip\[{option}={value}\]: at least \d"):
        ClipModel("ViT-B-32", **{option: value})  # type: ignore[arg-type]


# Arguments, name and identity


def identity(*given: Any, **options: Any) -> str:
    return json.dumps(ClipModel(*given, **options).identity(), sort_keys=True)


def test_everything_that_changes_the_embeddings_changes_the_identity(
    architecture: str, checkpoint: str, folder: str, tmp_path: Path
) -> None:
    other = tmp_path / "other.pt"
    torch.save(weights(architecture, seed=5), other)
    identities = [
        identity("ViT-B-32"),
        identity("ViT-B-16"),
        identity("ViT-B-32", "openai"),
        identity("ViT-B-32", "laion400m_e32"),
        identity("ViT-B-32", checkpoint),
        identity(architecture, checkpoint),
        identity(architecture, str(other)),
        identity(folder),
        identity("ViT-B-32", "openai", prompt_template="{c}"),
        identity("ViT-B-32", "openai", max_context_length=20),
        identity("ViT-B-32", "openai", dtype="float16"),
    ]
    assert len(set(identities)) == len(identities)
    assert identity("ViT-B-32", "openai", batch_size=2, device="cpu") == identities[2]


def test_the_identity_depends_on_the_content_of_weights_not_on_their_path(
    architecture: str, checkpoint: str, folder: str, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.pt"
    copy.write_bytes(Path(checkpoint).read_bytes())
    assert identity(architecture, str(copy)) == identity(architecture, checkpoint)
    assert identity(save_folder(tmp_path / "same", weights(architecture, seed=1))) == identity(folder)
    assert identity(save_folder(tmp_path / "else", weights(architecture, seed=2))) != identity(folder)
