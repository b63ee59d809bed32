"""Multiple choice by common sense: ARC, BoolQ, HellaSwag, OpenBookQA, PIQA and WinoGrande.

Each is scored by log-probability, and as `NAME_gen` by the generated letter.
"""

import re
from collections.abc import Sequence

from mill.api.registry import register_task
from mill.api.request import LOGLIKELIHOOD, Request
from mill.api.task import RenderSettings, Sample
from mill.tasks.data import Dataset
from mill.tasks.multiple_choice import GENERATED, ListedQuestion, MultipleChoiceTask, add_generated
from mill.tasks.prompted import Doc

_CONFIGS = {"arc_easy": "ARC-Easy", "arc_challenge": "ARC-Challenge"}


@register_task(*_CONFIGS)
class Arc(MultipleChoiceTask):
    """Grade-school science questions, easy and challenge."""

    splits = ("test", "validation")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.dataset = Dataset("allenai/ai2_arc", _CONFIGS[name], mirrors=("ai2_arc",))
        self.alternatives = (name + GENERATED,)

    def question(self, doc: Doc) -> str:
        return f"Question: {doc['question']}\nAnswer:"

    def choices(self, doc: Doc) -> list[str]:
        return list(doc["choices"]["text"])

    def answer(self, doc: Doc) -> int:
        return list(doc["choices"]["label"]).index(doc["answerKey"])


@register_task("boolq")
class BoolQ(MultipleChoiceTask):
    """A passage and a yes/no question about it."""

    dataset = Dataset("aps/super_glue", "boolq", mirrors=("super_glue",), plain_mirrors=("google/boolq", "boolq"))
    splits = ("validation",)
    shot_splits = ("train",)
    metrics = {"acc": "mean"}

    def question(self, doc: Doc) -> str:
        return f"{doc['passage']}\nQuestion: {doc['question']}?\nAnswer:"

    def choices(self, doc: Doc) -> list[str]:
        return ["no", "yes"]

    def answer(self, doc: Doc) -> int:
        return int(doc["label"] if "label" in doc else doc["answer"])


@register_task("hellaswag")
class HellaSwag(MultipleChoiceTask):
    """Which of four endings continues a scene."""

    dataset = Dataset("Rowan/hellaswag", mirrors=("hellaswag",))
    splits = ("validation",)
    shot_splits = ("train",)

    def question(self, doc: Doc) -> str:
        scene = f"{doc['ctx_a']} {doc['ctx_b'].capitalize()}" if "ctx_a" in doc else doc["ctx"]
        return clean(f"{doc['activity_label']}: {scene}")

    def listed(self, doc: Doc) -> ListedQuestion:
        question = f"Which ending continues the text?\n{self.question(doc)}"
        return ListedQuestion(question, tuple(self.choices(doc)), self.answer(doc))

    def warnings(self) -> list[str]:
        lines = super().warnings()
        if "ctx_a" not in self.samples()[0].doc:
            lines.append("the rows have no ctx_a and ctx_b, so the start of the last sentence keeps its small letter")
        return lines

    def choices(self, doc: Doc) -> list[str]:
        return [clean(ending) for ending in doc["endings"]]

    def answer(self, doc: Doc) -> int:
        return int(doc["label"])


def clean(text: str) -> str:
    """Without the bracketed section marks that WikiHow articles left behind."""
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


@register_task("openbookqa")
class OpenBookQA(MultipleChoiceTask):
    """Elementary science questions that need a fact and common sense."""

    dataset = Dataset("allenai/openbookqa", "main", mirrors=("openbookqa",))
    splits = ("test", "validation")

    def question(self, doc: Doc) -> str:
        return str(doc["question_stem"])

    def choices(self, doc: Doc) -> list[str]:
        return list(doc["choices"]["text"])

    def answer(self, doc: Doc) -> int:
        return list(doc["choices"]["label"]).index(doc["answerKey"].strip())


@register_task("piqa")
class Piqa(MultipleChoiceTask):
    """Which of two ways reaches an everyday goal."""

    dataset = Dataset("baber/piqa", mirrors=("ybisk/piqa", "piqa"))
    splits = ("validation",)
    shot_splits = ("train",)

    def question(self, doc: Doc) -> str:
        return f"Question: {doc['goal']}\nAnswer:"

    def choices(self, doc: Doc) -> list[str]:
        return [doc["sol1"], doc["sol2"]]

    def answer(self, doc: Doc) -> int:
        return int(doc["label"])


@register_task("winogrande")
class WinoGrande(MultipleChoiceTask):
    """Whom does a pronoun refer to? Each name is inserted, and the rest of the sentence is scored."""

    dataset = Dataset("allenai/winogrande", "winogrande_xl", mirrors=("winogrande",))
    splits = ("validation",)
    shot_splits = ("train",)
    metrics = {"acc": "mean"}

    def question(self, doc: Doc) -> str:
        return self.choices(doc)[self.answer(doc)]

    def answer_text(self, doc: Doc) -> str:
        return self._parts(doc)[1].strip()

    def choices(self, doc: Doc) -> Sequence[str]:
        start, _ = self._parts(doc)
        return [start + doc["option1"], start + doc["option2"]]

    def answer(self, doc: Doc) -> int:
        return int(doc["answer"]) - 1

    def listed(self, doc: Doc) -> ListedQuestion:
        question = f"Which option fills the blank?\n{doc['sentence']}"
        return ListedQuestion(question, (doc["option1"], doc["option2"]), self.answer(doc))

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        """The choices differ in the context; the continuation is the same for both."""
        delimiter = "" if settings.apply_chat_template else self.delimiter
        return [
            Request(
                LOGLIKELIHOOD,
                context=self.context(sample, settings, question=choice),
                continuation=delimiter + self.answer_text(sample.doc),
            )
            for choice in self.choices(sample.doc)
        ]

    def _parts(self, doc: Doc) -> tuple[str, str]:
        start, _, end = doc["sentence"].partition("_")
        return start, end


add_generated(*_CONFIGS, "boolq", "hellaswag", "openbookqa", "piqa", "winogrande")
