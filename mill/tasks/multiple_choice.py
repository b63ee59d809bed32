"""Multiple choice scored by log-probability: every choice is a continuation, the likeliest is the answer."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mill.api.registry import tasks
from mill.api.request import LOGLIKELIHOOD, Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample, TaskType, Value
from mill.tasks.prompted import Doc, PromptedTask

GENERATED = "_gen"  # after the name of a task: its choices are listed, and the model generates the letter


@dataclass(frozen=True)
class ListedQuestion:
    """A question whose choices a prompt lists as `A. ...`. `answer` is the index of the right one; None where none is.

    Where the question's own text lists them, `in_question`, the choices are just letters and stay in their order. The
    `introduction` comes before the examples.
    """

    question: str
    choices: tuple[str, ...]
    answer: int | None
    in_question: bool = False
    introduction: str = ""


class MultipleChoiceTask(PromptedTask):
    """`acc` takes the choice of the highest log-probability, `acc_norm` that of the highest per character of the choice."""

    task_type = TaskType.MULTIPLE_CHOICE
    metrics: Mapping[str, str] = {"acc": "mean", "acc_norm": "mean"}

    @abstractmethod
    def choices(self, doc: Doc) -> Sequence[str]: ...

    @abstractmethod
    def answer(self, doc: Doc) -> int:
        """The index of the right choice."""

    def answer_text(self, doc: Doc) -> str:
        return self.choices(doc)[self.answer(doc)]

    def choice_texts(self, sample: Sample) -> Sequence[str]:
        return self.choices(sample.doc)

    def listed(self, doc: Doc) -> ListedQuestion:
        """The question for a prompt that lists the choices, with the texts of the choices."""
        return ListedQuestion(self.question(doc).removesuffix("\nAnswer:"), tuple(self.choices(doc)), self.answer(doc))

    @property
    def by_letter(self) -> str:  # type: ignore[override]
        name = self.name + GENERATED
        return name if name in tasks else ""

    def target(self, sample: Sample) -> str:
        return named_choice(self.choices(sample.doc), self.answer(sample.doc))

    def requests(self, sample: Sample, settings: RenderSettings) -> list[Request]:
        context = self.context(sample, settings)
        # A chat template ends where the answer begins: no space in between.
        delimiter = "" if settings.apply_chat_template else self.delimiter
        return [
            Request(LOGLIKELIHOOD, context=context, continuation=delimiter + choice, repeats=settings.repeats)
            for choice in self.choices(sample.doc)
        ]

    def extracts(self, sample: Sample) -> bool:
        return True

    def extracted(self, sample: Sample, responses: Sequence[Response]) -> str:
        """The likeliest choice, spelled as the target is."""
        return named_choice(self.choices(sample.doc), _best(_finite_scores(responses)))

    def score(self, sample: Sample, responses: Sequence[Response]) -> dict[str, Value]:
        scores = _finite_scores(responses)
        lengths = [max(1, len(choice)) for choice in self.choices(sample.doc)]
        right = self.answer(sample.doc)
        values: dict[str, Value] = {
            "acc": float(_best(scores) == right),
            "acc_norm": float(_best([score / length for score, length in zip(scores, lengths, strict=True)]) == right),
        }
        return {name: value for name, value in values.items() if name in self.metrics}


def named_choice(choices: Sequence[str], index: int) -> str:
    """The text of a choice, with its index where another choice has the same text: target and extracted are equal only
    where they are the same choice."""
    return choices[index] if choices.count(choices[index]) == 1 else f"{choices[index]} [{index}]"


def _finite_scores(responses: Sequence[Response]) -> list[float]:
    scores = [response.score if response.score is not None else float("nan") for response in responses]
    if not any(map(math.isfinite, scores)):
        raise ValueError("no choice has a finite log-probability")
    return scores


def _best(scores: Sequence[float]) -> int:
    """The first index of the largest score."""
    return max(range(len(scores)), key=lambda index: scores[index])
