"""ARC: grade-school science questions, easy and challenge; by log-probability, or by the generated letter."""

from mill.api.registry import register_task
from mill.api.task import Sample
from mill.tasks.data import Dataset
from mill.tasks.generative import LETTERS, LetterTask
from mill.tasks.multiple_choice import MultipleChoiceTask
from mill.tasks.prompted import Doc

_CONFIGS = {"arc_easy": "ARC-Easy", "arc_challenge": "ARC-Challenge"}


def _dataset(name: str) -> Dataset:
    return Dataset("allenai/ai2_arc", _CONFIGS[name.removesuffix("_gen")], mirrors=("ai2_arc",))


def _right(doc: Doc) -> int:
    return list(doc["choices"]["label"]).index(doc["answerKey"])


@register_task("arc_easy", "arc_challenge")
class Arc(MultipleChoiceTask):
    splits = ("test", "validation")

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.dataset = _dataset(name)
        self.alternatives = (f"{name}_gen",)

    def question(self, doc: Doc) -> str:
        return f"Question: {doc['question']}\nAnswer:"

    def choices(self, doc: Doc) -> list[str]:
        return list(doc["choices"]["text"])

    def answer(self, doc: Doc) -> int:
        return _right(doc)


@register_task("arc_easy_gen", "arc_challenge_gen")
class ArcLetter(LetterTask):
    """The same questions for models that give no log-probabilities."""

    splits = ("test", "validation")
    generation = {"max_gen_toks": 128, "until": ("\n\n", "Question:")}
    description = 'Choose the right option and finish with "the answer is (X)", where X is its letter.\n\n'

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.dataset = _dataset(name)

    def question(self, doc: Doc) -> str:
        options = "".join(f"{letter}. {text}\n" for letter, text in zip(LETTERS, doc["choices"]["text"], strict=False))
        return f"Question: {doc['question']}\n{options}Answer:"

    def answer_text(self, doc: Doc) -> str:
        return f"the answer is ({LETTERS[_right(doc)]})"

    def right_letter(self, sample: Sample) -> str:
        return LETTERS[_right(sample.doc)]
