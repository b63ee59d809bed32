"""ARC: grade-school science questions, easy and challenge; by log-probability, or by the generated letter."""

from mill.api.registry import register_task
from mill.tasks.data import Dataset
from mill.tasks.generated_choice import add_generated
from mill.tasks.multiple_choice import GENERATED, MultipleChoiceTask
from mill.tasks.prompted import Doc

_CONFIGS = {"arc_easy": "ARC-Easy", "arc_challenge": "ARC-Challenge"}


@register_task(*_CONFIGS)
class Arc(MultipleChoiceTask):
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


add_generated(*_CONFIGS)
