"""Images (or sounds) of one class each, in the renderings that models serve: zero-shot, supervised, multiple choice.

CIFAR-10, ESC-50 and ImageNet are here, Flickr30k's retrieval of a caption by its image and of an image by its caption, and
MMMU-Pro: questions with images, also as a zero-shot ranking.
"""

from __future__ import annotations

import ast
import importlib.util
import itertools
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mill.api.errors import DataError
from mill.api.message import AUDIO, IMAGE, Labels, Media, Message
from mill.api.registry import tasks
from mill.api.request import CLASSIFY, GENERATE, LOGLIKELIHOOD, ZERO_SHOT, Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample, Task, TaskType, Value
from mill.tasks.data import Dataset, load_split
from mill.tasks.prompted import LETTERS

CHOICES = 4
TOP = 5


@dataclass(frozen=True)
class ClassifiedSet:
    """A dataset of images (or audio) and classes. Labels are class numbers, class names, or `folders`: their other names,
    by which label folders may be called.

    `question` is the prompt for a language model, `templates` are those of a text tower.
    """

    dataset: Dataset
    splits: tuple[str, ...]
    classes: tuple[str, ...]
    question: str
    folders: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    media: str = IMAGE
    media_columns: tuple[str, ...] = ("image", "img")
    label_columns: tuple[str, ...] = ("label",)

    @property
    def names(self) -> tuple[str, ...]:
        """One unique name for each class."""
        return self.folders or self.classes

    def rows(self) -> tuple[str, list[dict[str, Any]]]:
        return load_split(self.dataset, self.splits)


class ClassifiedTask(Task):
    """What the renderings share: samples, their media, and the number of their class."""

    def __init__(self, name: str, data: ClassifiedSet, alternatives: tuple[str, ...] = ()) -> None:
        self.data, self.alternatives = data, alternatives
        self.modalities = frozenset({data.media})
        super().__init__(name)

    @cached_property
    def _loaded(self) -> tuple[str, list[dict[str, Any]]]:
        return self.data.rows()

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        names = (*enumerate(self.data.classes), *enumerate(self.data.folders))
        return {name: number for number, name in reversed(names)}

    def samples(self) -> Sequence[Sample]:
        rows = self._loaded[1]
        numbers = [self._number(row) for row in rows]  # a label that is no class is refused before anything is computed
        return [Sample(str(index), rows[index]) for index in _fair_order(numbers)]

    def warnings(self) -> list[str]:
        split = self._loaded[0]
        wanted = self.data.splits[0]
        return [] if split == wanted else [f"the {split} split is used instead of {wanted}, which is missing"]

    def _cell(self, row: Mapping[str, Any], columns: Sequence[str]) -> Any:
        for column in columns:
            if row.get(column) is not None:
                return row[column]
        raise DataError(f"a row of {self.data.dataset} has none of the columns {', '.join(columns)}")

    def _number(self, row: Mapping[str, Any]) -> int:
        label = self._cell(row, self.data.label_columns)
        number = self._numbers.get(label) if isinstance(label, str) else label
        if not isinstance(number, int) or not 0 <= number < len(self.data.classes):
            what = self._cell(row, self.data.media_columns)
            raise DataError(f"{what} has the label {label!r}, which is none of the {len(self.data.classes)} classes")
        return number

    def media(self, sample: Sample) -> Media:
        return Media(self.data.media, self._cell(sample.doc, self.data.media_columns))

    def right(self, sample: Sample) -> int:
        return self._number(sample.doc)

    def target(self, sample: Sample) -> str:
        return self.data.classes[self.right(sample)]


def _fair_order(classes: Sequence[int]) -> list[int]:
    """The indices of rows in the order in which they run: that of the data, unless the data are sorted by class, as in
    label folders. Then classes alternate, so that a limit takes as many of each; a row's index stays its id.
    """
    rows: dict[int, list[int]] = {}
    for index, number in enumerate(classes):
        rows.setdefault(number, []).append(index)
    changes = sum(a != b for a, b in itertools.pairwise(classes))
    if changes >= len(rows):  # the classes are mixed already
        return list(range(len(classes)))
    turns = itertools.zip_longest(*rows.values())
    return [index for turn in turns for index in turn if index is not None]


class ZeroShotTask(ClassifiedTask):
    """The likeliest of all classes: `acc` counts the first, `acc5` the first five."""

    task_type = TaskType.ZERO_SHOT_CLASSIFICATION
    metrics = {"acc": "mean", f"acc{TOP}": "mean"}

    @cached_property
    def labels(self) -> Labels:
        return Labels(self.data.names, self.data.classes, self.data.templates)

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        dialog = settings.dialog(self.media(sample))
        return [Request(self.kind, dialog[-1:], labels=self.labels)]

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        right, answer = self.data.names[self.right(sample)], responses[0]
        best: list[str | None] = [label for label, _ in answer.ranking or ()]
        return {"acc": float(answer.label == right), f"acc{TOP}": float(right in (best[:TOP] or [answer.label]))}


class SupervisedTask(ZeroShotTask):
    """The same question to a model whose head has these very classes, in this order."""

    task_type = TaskType.SUPERVISED_CLASSIFICATION
    kind = CLASSIFY

    @cached_property
    def labels(self) -> Labels:
        return Labels(self.data.names)


class ChoiceTask(ClassifiedTask):
    """For models that talk: the right class among others drawn for each sample, chosen by its letter's log-probability."""

    task_type = TaskType.MULTIPLE_CHOICE
    metrics = {"acc": "mean"}

    def options(self, sample: Sample) -> list[int]:
        """Class numbers in the order shown; the draw depends on the sample alone."""
        draw = random.Random(f"{self.data.dataset}/{sample.id}")
        right = self.right(sample)
        others = [n for n, name in enumerate(self.data.classes) if name != self.data.classes[right]]
        shown = [right, *draw.sample(others, min(CHOICES - 1, len(others)))]
        draw.shuffle(shown)
        return shown

    def dialog(self, sample: Sample, settings: RenderSettings, ending: str) -> Any:
        lines = [f"{LETTERS[index]}. {self.data.classes[n]}" for index, n in enumerate(self.options(sample))]
        return settings.dialog(self.media(sample), "\n".join((self.data.question, *lines, ending)))

    def right_letter(self, sample: Sample) -> str:
        return LETTERS[self.options(sample).index(self.right(sample))]

    def target(self, sample: Sample) -> str:
        return self._named(sample, self.right_letter(sample))

    def _named(self, sample: Sample, letter: str) -> str:
        return f"{letter}. {self.data.classes[self.options(sample)[LETTERS.index(letter)]]}"

    def letter(self, responses: Sequence[Response]) -> str | None:
        """The letter of the choice with the highest log-probability."""
        scores = [response.score if response.score is not None else float("-inf") for response in responses]
        return LETTERS[max(range(len(scores)), key=scores.__getitem__)]

    def extracted(self, sample: Sample, responses: Sequence[Response]) -> str | None:
        """The chosen letter and its class, spelled as the target is; a letter that was not offered stays alone."""
        letter = self.letter(responses)
        offered = letter is not None and letter in LETTERS[: len(self.options(sample))]
        return self._named(sample, letter) if letter is not None and offered else letter

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        context = self.dialog(sample, settings, "Answer with the letter of the right choice.")
        letters = LETTERS[: len(self.options(sample))]
        return [Request(LOGLIKELIHOOD, context, letter) for letter in letters]

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        return {"acc": float(self.letter(responses) == self.right_letter(sample))}


class ChoiceByGenerationTask(ChoiceTask):
    """The same choice by the letter that the model writes, for models without log-probabilities."""

    kind = GENERATE

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        context = self.dialog(sample, settings, "Answer with the letter of the right choice alone.")
        return [Request(GENERATE, context, options=settings.options(max_gen_toks=16))]

    def letter(self, responses: Sequence[Response]) -> str | None:
        return _written_letter(responses[0].text or "")


def _written_letter(text: str) -> str | None:
    """The letter an answer gives: after the word answer, in front of the rest, or at the end; "A cat" is an article."""
    letter = f"([A-{LETTERS[CHOICES - 1]}])"
    for pattern in (rf"[Aa]nswer(?: is)?:?\W*{letter}\b", rf"^\W*{letter}(?![\w' ])", rf"\b{letter}\W*$"):
        match = re.search(pattern, text)
        if match:
            return match.group(1)
    return None


def add_renderings(name: str, data: ClassifiedSet, zero_shot: type[ZeroShotTask] = ZeroShotTask) -> None:
    """Register a dataset under its name and each rendering under its own name.

    Images run zero-shot unless the model serves only another rendering; audio, which no backend ranks, as multiple choice.
    """
    choices = (f"{name}_mcq", f"{name}_mcq_gen")
    tasks.add(choices[0], lambda own: ChoiceTask(own, data, choices[1:]))
    tasks.add(choices[1], lambda own: ChoiceByGenerationTask(own, data))
    if data.media == AUDIO:
        tasks.add(name, lambda own: ChoiceTask(own, data, choices[1:]))
        return
    tasks.add(name, lambda own: zero_shot(own, data, (f"{name}_supervised", *choices)))
    tasks.add(f"{name}_supervised", lambda own: SupervisedTask(own, data))


CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

CIFAR10 = ClassifiedSet(
    dataset=Dataset("uoft-cs/cifar10", mirrors=("cifar10",)),
    splits=("test",),
    classes=CIFAR10_CLASSES,
    question="What does this small picture show?",
    templates=("a photo of a {c}.", "a blurry photo of a {c}.", "a low resolution photo of the {c}.", "a small {c}."),
)
add_renderings("cifar10", CIFAR10)


_ESC50_NAMES = """
    dog rooster pig cow frog cat hen insects sheep crow rain sea_waves crackling_fire crickets chirping_birds water_drops
    wind pouring_water toilet_flush thunderstorm crying_baby sneezing clapping breathing coughing footsteps laughing
    brushing_teeth snoring drinking_sipping door_wood_knock mouse_click keyboard_typing door_wood_creaks can_opening
    washing_machine vacuum_cleaner clock_alarm clock_tick glass_breaking helicopter chainsaw siren car_horn engine train
    church_bells airplane fireworks hand_saw
"""
_ESC50_FOLDERS = tuple(_ESC50_NAMES.split())

ESC50 = ClassifiedSet(
    dataset=Dataset("ashraq/esc50", mirrors=("esc50",)),
    splits=("test", "train"),
    classes=tuple(name.replace("_", " ") for name in _ESC50_FOLDERS),
    folders=_ESC50_FOLDERS,
    question="What is heard in this recording?",
    media=AUDIO,
    media_columns=("audio",),
    label_columns=("category", "target", "label"),
)
add_renderings("esc50", ESC50)


_LINES = [line.split("\t") for line in Path(__file__).with_name("imagenet_classes.tsv").read_text("utf-8").splitlines()]
WNIDS = tuple(wnid for wnid, _ in _LINES)
IMAGENET_CLASSES = tuple(name for _, name in _LINES)

IMAGENET = ClassifiedSet(
    dataset=Dataset("ILSVRC/imagenet-1k", mirrors=("imagenet-1k",)),
    splits=("validation",),
    classes=IMAGENET_CLASSES,
    folders=WNIDS,
    question="What does this picture show?",
)


class ZeroShotImageNet(ZeroShotTask):
    """With open_clip's eighty templates, as in published results."""

    @cached_property
    def labels(self) -> Labels:
        if importlib.util.find_spec("open_clip") is None:  # then no model needs them: other backends use their own template
            return Labels(self.data.names, self.data.classes)
        from open_clip.zero_shot_metadata import OPENAI_IMAGENET_TEMPLATES

        return Labels(self.data.names, self.data.classes, tuple(make("{c}") for make in OPENAI_IMAGENET_TEMPLATES))


add_renderings("imagenet", IMAGENET, ZeroShotImageNet)


RECALLS = (1, 5, 10)


class Retrieval(Task):
    """`recall@k` counts the samples with a right answer among the first k."""

    task_type = TaskType.ZERO_SHOT_CLASSIFICATION
    modalities = frozenset({IMAGE})
    metrics: Mapping[str, str] = {f"recall@{k}": "mean" for k in RECALLS}
    dataset = Dataset("nlphuji/flickr_1k_test_image_text_retrieval", mirrors=("nlphuji/flickr30k",))
    splits = ("test",)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        return load_split(self.dataset, self.splits)[1]

    @cached_property
    def captions(self) -> list[tuple[str, int, str]]:
        """(name, row of its image, text) of every caption."""
        texts = ((row, row_captions(self.rows[row])) for row in range(len(self.rows)))
        return [(f"{row}.{index}", row, text) for row, captions in texts for index, text in enumerate(captions)]

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        names = [name for name, _ in responses[0].ranking or ()]
        return {f"recall@{k}": float(any(self.fits(sample, name) for name in names[:k])) for k in RECALLS}

    def fits(self, sample: Sample, name: str) -> bool:
        """Whether a candidate is one of the sample's right answers: both begin with the row of the image."""
        return name.partition(".")[0] == sample.id.partition(".")[0]


class ImageToText(Retrieval):
    @cached_property
    def labels(self) -> Labels:
        return Labels(tuple(name for name, _, _ in self.captions), tuple(text for _, _, text in self.captions), ("{c}",))

    def samples(self) -> Sequence[Sample]:
        return [Sample(str(row), self.rows[row]) for row in range(len(self.rows))]

    def target(self, sample: Sample) -> list[str]:
        return row_captions(sample.doc)

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        image = Message("user", (Media(IMAGE, sample.doc["image"]),))
        return [Request(ZERO_SHOT, (image,), labels=self.labels)]


class TextToImage(Retrieval):
    @cached_property
    def labels(self) -> Labels:
        images = tuple(Media(IMAGE, row["image"]) for row in self.rows)
        return Labels(tuple(str(row) for row in range(len(self.rows))), media=images)

    def samples(self) -> Sequence[Sample]:
        return [Sample(name, {"caption": text, "picture": str(row)}) for name, row, text in self.captions]

    def target(self, sample: Sample) -> str:
        return str(sample.doc["picture"])

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        return [Request(ZERO_SHOT, sample.doc["caption"], labels=self.labels)]


def row_captions(row: Mapping[str, Any]) -> list[str]:
    captions = row["caption"]
    return [captions] if isinstance(captions, str) else [str(text) for text in captions]


tasks.add("flickr30k_i2t", ImageToText)
tasks.add("flickr30k_t2i", TextToImage)


_IMAGE_TAG = re.compile(r"<image (\d)>")
_ENDING = 'Think step by step, and end with a line "Answer: X", where X is the letter of the right choice.'


class MMMUPro(Task):
    """The standard rendering with ten choices and a chain of thought; images are inserted where the text names them."""

    task_type = TaskType.MULTIPLE_CHOICE
    kind = GENERATE
    modalities = frozenset({"text", IMAGE})
    metrics: Mapping[str, str] = {"exact_match": "mean"}
    alternatives: tuple[str, ...] = ("mmmu_pro_clip",)
    dataset = Dataset("MMMU/MMMU_Pro", "standard (10 options)")
    splits = ("test",)

    def samples(self) -> Sequence[Sample]:
        _, rows = load_split(self.dataset, self.splits)
        return [Sample(str(row.get("id", index)), row) for index, row in enumerate(rows)]

    def options(self, sample: Sample) -> list[str]:
        """The choices; on the hub they are the text of a list."""
        options = sample.doc["options"]
        options = ast.literal_eval(options) if isinstance(options, str) else options
        if not isinstance(options, list) or not 1 < len(options) <= len(LETTERS):
            raise DataError(f"{self.name}: the options of sample {sample.id} are not a list of choices")
        return [str(option) for option in options]

    def image(self, sample: Sample, number: str) -> Media:
        source = sample.doc.get(f"image_{number}")
        if source is None:
            raise DataError(f"{self.name}: sample {sample.id} names image {number}, which it does not have")
        return Media(IMAGE, source)

    def target(self, sample: Sample) -> str:
        return str(sample.doc["answer"])

    def with_images(self, sample: Sample, text: str) -> list[str | Media]:
        """A text split where it names images, with the images between."""
        pieces = _IMAGE_TAG.split(text)  # texts and numbers in turn
        parts = [self.image(sample, piece) if index % 2 else piece for index, piece in enumerate(pieces)]
        return [part for part in parts if part != ""]

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        lines = [f"{letter}. {option}" for letter, option in zip(LETTERS, self.options(sample), strict=False)]
        text = "\n".join((str(sample.doc["question"]), *lines, _ENDING))
        context = settings.dialog(*self.with_images(sample, text))
        options = settings.options(max_gen_toks=1024)
        return [Request(GENERATE, context, options=options)]

    def extracted(self, sample: Sample, responses: Sequence[Response]) -> str | None:
        letters = re.findall(r"[Aa]nswer(?: is)?\W{0,8}([A-J])\b(?! [a-z])", responses[0].text or "")
        return letters[-1] if letters else None

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        return {"exact_match": float(self.extracted(sample, responses) == self.target(sample))}


class MMMUProClip(MMMUPro):
    """The question's first image against the text of each choice with its question."""

    task_type = TaskType.ZERO_SHOT_CLASSIFICATION
    kind = ZERO_SHOT
    modalities = frozenset({IMAGE})
    metrics = {"acc": "mean"}
    alternatives = ()

    def warnings(self) -> list[str]:
        return ["only the first image of a question is used; choices that are images differ only by their letter"]

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        question = _IMAGE_TAG.sub("", str(sample.doc["question"])).strip()
        options = self.options(sample)
        texts = tuple(f"{question} {_IMAGE_TAG.sub('', option).strip()}" for option in options)
        labels = Labels(tuple(LETTERS[: len(options)]), texts, ("{c}",))
        first = settings.dialog(self.image(sample, "1"))[-1:]
        return [Request(ZERO_SHOT, first, labels=labels)]

    def extracted(self, sample: Sample, responses: Sequence[Response]) -> str | None:
        return responses[0].label

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        return {"acc": float(responses[0].label == self.target(sample))}


tasks.add("mmmu_pro", MMMUPro)
tasks.add("mmmu_pro_clip", MMMUProClip)
